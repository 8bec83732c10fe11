"""Random traces that drive the scheduler without a model, and everything that must hold while they run.

The fake KV cache keeps one number per slot. The number of a token is a hash of the token, the namespace of its
request and the numbers of all tokens it can see, read back through the block table; the next token is a hash of the
same. So a wrong block, a stale slot, a lost token or a foreign prefix changes the answer, which is compared with
that of the request alone. Some traces guess tokens, by looking back or by a seer who knows the answers and is wrong
now and then: the answers must not change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

from caudal.core.prefill_pace import MIN_WORK
from caudal.core.request import Request
from caudal.core.scheduler import Scheduler, SchedulerConfig
from caudal.core.step_plan import KVGroup
from caudal.errors import InvalidParameter, Overloaded, PromptTooLong

CORE = SimpleNamespace(Scheduler=Scheduler, SchedulerConfig=SchedulerConfig, KVGroup=KVGroup, Request=Request)
VOCABULARY = 5
STOP_TOKEN = 4
MAX_STEP_TOKENS = 8
MAX_STEPS = 3000


@dataclass(frozen=True)
class Trace:
    """Limits, requests with the step in which they arrive, and accidents.

    `aborts` maps a step to (request, phase): before the step is planned, before it is computed, before it is
    committed. `failures` are the steps whose computation raises. `has_seer`: drafts come from a Seer.
    """

    config: dict
    groups: tuple[tuple[int, int | None], ...]
    requests: tuple[tuple[int, dict], ...]
    aborts: dict[int, list[tuple[int, str]]]
    failures: frozenset[int]
    has_seer: bool


# The model


def kv_number(namespace, token_id, seen):
    return hash((namespace, token_id, *seen))


def next_token(numbers_of_groups):
    return hash(tuple(numbers_of_groups)) % VOCABULARY


def visible(numbers, position, window):
    return numbers[: position + 1] if window is None else numbers[max(0, position - window + 1) : position + 1]


def namespace_of(spec):
    return len(spec["cache_salt"]), len(spec["adapter"])


def answer_alone(spec, windows, max_model_len):
    """The token ids that a request gives on its own, and why it ends. `spec` holds the arguments of Request."""
    token_ids = list(spec["prompt_token_ids"])
    numbers = [[] for _ in windows]
    while True:
        for group, window in zip(numbers, windows, strict=True):
            for position in range(len(group), len(token_ids)):
                seen = group if window is None else group[max(0, position - window + 1) :]
                group.append(kv_number(namespace_of(spec), token_ids[position], seen))
        end = len(token_ids)
        token = next_token(tuple(visible(g, end - 1, w)) for g, w in zip(numbers, windows, strict=True))
        token_ids.append(token)
        num_answered = len(token_ids) - len(spec["prompt_token_ids"])
        if token in spec["stop_token_ids"] and num_answered > spec["min_tokens"]:
            return token_ids, "stop"
        if len(token_ids) >= max_model_len or num_answered == spec["max_tokens"]:
            return token_ids, "length"


class Seer:
    """Drafts from the answers, with a wrong token now and then."""

    def __init__(self, answers):
        self.answers = answers

    def propose(self, token_ids, max_tokens):
        known = list(token_ids)
        answer = next((answer for answer in self.answers if answer[: len(known)] == known), known)
        draft = answer[len(known) : len(known) + max_tokens]
        whim = hash(tuple(known))
        if draft and whim % 3 == 0:
            draft[whim % len(draft)] = whim % VOCABULARY
        return tuple(draft)


# Making traces


def make_trace(rng):
    """A trace from a `random.Random` (a seeded one, or hypothesis' own)."""
    block_size = rng.choice([1, 2, 2, 3, 4, 4])
    max_num_seqs = rng.randint(1, 5)
    config = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": rng.randint(max_num_seqs, 20),
        "max_model_len": rng.randint(4, 48),
        "block_size": block_size,
        "max_queue_len": rng.randint(1, 12),
        "enable_prefix_caching": rng.random() < 0.85,
    }
    shape = rng.choice(["full", "full", "sliding", "both", "both"])
    groups = []
    if shape != "sliding":
        groups.append((rng.randint(3, 16), None))
    if shape != "full":
        groups.append((rng.randint(3, 14), rng.randint(1, 9)))
    requests = make_requests(rng, [window for _, window in groups], config["max_model_len"])
    aborts = {}
    for _ in range(rng.choice([0, 0, 1, 2, 4])):
        victim = rng.randrange(len(requests))
        step = requests[victim][0] + rng.randint(0, 8)
        aborts.setdefault(step, []).append((victim, rng.choice(["plan", "compute", "commit"])))
    failures = frozenset(rng.sample(range(12), 1)) if rng.random() < 0.1 else frozenset()
    config["num_speculative_tokens"] = rng.choice([0, 0, 1, 3, 7, 7])
    config |= {"prefill_per_decode": rng.choice([0, 0, 0, 1, 2.5]), "context_per_token": rng.choice([0, 1, 2])}
    return Trace(config, tuple(groups), tuple(requests), aborts, failures, has_seer=rng.random() < 0.7)


def make_requests(rng, windows, max_model_len):
    stem = [rng.randrange(2) for _ in range(16)]
    has_priorities = rng.random() < 0.3
    requests, histories = [], []
    for index in range(rng.randint(1, 9)):
        start_of = rng.choice(histories) if histories and rng.random() < 0.4 else stem
        prompt = start_of[: rng.randint(0, rng.choice([4, 8, 16]))] + [
            rng.randrange(3) for _ in range(rng.randint(0, 5))
        ]
        max_tokens = rng.choice([None, 1, 2, 6, 12, 20])
        spec = {
            "request_id": f"r{index}",
            "prompt_token_ids": tuple(prompt),
            "max_tokens": max_tokens,
            "min_tokens": rng.choice([0, 0, 0, min(3, max_tokens or 3)]),
            "stop_token_ids": frozenset([STOP_TOKEN]) if max_tokens is None or rng.random() < 0.3 else frozenset(),
            "priority": rng.randint(-1, 1) if has_priorities else 0,
            "tenant": rng.choice("abc"),
            "cache_salt": rng.choice(["", "", "s"]),
            "adapter": rng.choice(["", "", "", "l"]),
            "wants_prompt_logits": rng.random() < 0.15,
        }
        requests.append((rng.choice([0, 0, rng.randint(0, 20)]), spec))
        if len(prompt) > 0:
            histories.append(answer_alone(spec, windows, max_model_len)[0] if len(prompt) < max_model_len else prompt)
    return sorted(requests, key=lambda item: item[0])


# Running them


@dataclass
class Run:
    """What a trace did. Raises AssertionError when something does not hold."""

    trace: Trace
    core: SimpleNamespace = field(default_factory=lambda: CORE)
    plans: list[str] = field(default_factory=list)
    events: Counter = field(default_factory=Counter)

    def __post_init__(self):
        trace, core = self.trace, self.core
        groups = tuple(core.KVGroup(num_blocks, window) for num_blocks, window in trace.groups)
        self.windows = [window for _, window in trace.groups]
        self.scheduler = core.Scheduler(core.SchedulerConfig(**trace.config), groups)
        if trace.has_seer:
            seer = Seer([self.answer_of(spec)[0] for _, spec in trace.requests if spec["prompt_token_ids"]])
            self.scheduler._speculation._make_drafter = lambda: seer
        self.slots = [{} for _ in groups]
        self.specs = {}
        self.got = {}
        self.finished = {}
        self.scored = {}

    def answer_of(self, spec):
        return answer_alone(spec, self.windows, self.scheduler.max_model_len)

    def go(self):
        last_arrival = max([step for step, _ in self.trace.requests] + list(self.trace.aborts), default=0)
        for step in range(MAX_STEPS):
            self.arrivals(step)
            self.aborts(step, "plan")
            if not self.step(step) and step > last_arrival:
                break
        else:
            raise AssertionError(f"no progress in {MAX_STEPS} steps")
        self.check_end()
        return self

    def arrivals(self, step):
        for arrival, spec in self.trace.requests:
            if arrival == step:
                try:
                    seq_id = self.scheduler.add(self.core.Request(**spec))
                except (PromptTooLong, Overloaded, InvalidParameter) as error:
                    self.events[type(error).__name__] += 1
                    self.check_refusal(spec, error)
                else:
                    self.specs[seq_id] = spec
                    self.got[spec["request_id"]] = []

    def check_refusal(self, spec, error):
        """A refusal has a reason. A prompt that leaves room for one token in every pool is never too long."""
        num_prompt_tokens = len(spec["prompt_token_ids"])
        config = self.trace.config
        is_short = all(num_prompt_tokens + 1 <= blocks * config["block_size"] for blocks, _ in self.trace.groups)
        match type(error).__name__:
            case "PromptTooLong":
                assert num_prompt_tokens + 1 > config["max_model_len"] or not is_short, "refused without need"
            case "InvalidParameter":
                assert num_prompt_tokens == 0, "refused without need"
            case "Overloaded":
                assert len(self.got) - len(self.finished) >= config["max_queue_len"], "refused without need"

    def aborts(self, step, phase):
        for victim, when in self.trace.aborts.get(step, ()):
            request_id = self.trace.requests[victim][1]["request_id"]
            if when == phase:
                update = self.scheduler.abort(request_id)
                is_open = request_id in self.got and request_id not in self.finished
                assert (update is not None) == is_open, "an abort said nothing, or too much"
                if update is not None:
                    self.events["abort before " + phase] += 1
                    self.finish(update)
                    self.scheduler.check_integrity()

    def step(self, step):
        plan = self.scheduler.schedule()
        if plan is None:
            assert not self.scheduler.has_work, "work, but no plan"
            return False
        self.plans.append(plan.to_json())
        self.check_plan(plan)
        self.scheduler.check_integrity()
        running = {seq.seq_id for seq in self.scheduler._running}
        self.aborts(step, "compute")
        if step in self.trace.failures:
            self.events["failure"] += 1
            for update in self.scheduler.fail(plan):
                assert update.finish_reason == "error"
                self.finish(update)
            planned = {self.specs[row.seq_id]["request_id"] for row in plan.rows}
            assert planned <= set(self.finished), "a request outlived the failure of its step"
            self.scheduler.check_integrity()
            return True
        sampled = self.compute(plan)
        self.aborts(step, "commit")
        samples = {self.specs[row.seq_id]["request_id"] for row in plan.sampling_rows} - set(self.finished)
        updates = self.scheduler.commit(plan, sampled)
        assert [update.request_id for update in updates if update.request_id in samples] == [
            update.request_id for update in updates
        ], "an update for a sequence that did not sample, or is gone"
        assert len(updates) == len(samples), "a sampled token got lost"
        drafts = {self.specs[row.seq_id]["request_id"]: row.draft for row in plan.rows if row.draft}
        for update in updates:
            self.got[update.request_id] += update.new_token_ids
            self.note_draft(drafts.get(update.request_id, ()), update)
            if update.finish_reason is not None:
                self.finish(update)
        self.scheduler.check_integrity()
        self.check_sharing_and_waste()
        assert {seq.seq_id for seq in self.scheduler._running} <= running, "commit started a sequence"
        return True

    def note_draft(self, draft, update):
        num_right = len(update.new_token_ids) - 1
        assert update.new_token_ids[:-1] == draft[:num_right], "a token that was not guessed"
        self.events["right guesses"] += num_right
        self.events["wrong guesses"] += len(draft) > num_right
        self.events["answers that end inside a draft"] += num_right < len(draft) and update.finish_reason is not None

    def finish(self, update):
        assert update.request_id not in self.finished, "a request ended twice"
        self.finished[update.request_id] = update

    def compute(self, plan):
        """The fake forward pass: write each row's numbers, reading back what each token sees."""
        sampled = []
        for row in plan.rows:
            spec = self.specs[row.seq_id]
            token_ids = [*self.scheduler.tokens_of(row.seq_id), *row.draft]
            namespace = namespace_of(spec)
            numbers_of_groups = []
            for slots, table, window in zip(self.slots, row.block_tables, self.windows, strict=True):
                end = row.start + row.num_tokens
                first = 0 if window is None else max(0, row.start - window + 1)
                numbers = [self.read(slots, table, position) for position in range(first, row.start)]
                for position in range(row.start, end):
                    skip = 0 if window is None else max(0, position - window + 1) - first
                    number = kv_number(namespace, token_ids[position], numbers[skip:])
                    numbers.append(number)
                    slots[self.slot(table, position)] = number
                numbers_of_groups.append((first, numbers))
            if row.samples:
                for position in range(end - 1 - len(row.draft), end):
                    seen = [
                        tuple(visible(numbers, position - first, window))
                        for (first, numbers), window in zip(numbers_of_groups, self.windows, strict=True)
                    ]
                    sampled.append(next_token(seen))
            if spec["wants_prompt_logits"]:
                end = row.start + row.num_tokens
                self.scored.setdefault(spec["request_id"], []).extend(range(end - row.num_logits, end))
        return sampled

    def slot(self, table, position):
        block_size = self.trace.config["block_size"]
        block_id = table[position // block_size]
        assert block_id >= 0, "a block is missing that the window reaches"
        return block_id * block_size + position % block_size

    def read(self, slots, table, position):
        slot = self.slot(table, position)
        assert slot in slots, "a slot is read that was never written"
        return slots[slot]

    # What must hold

    def check_plan(self, plan):
        config, block_size = self.trace.config, self.trace.config["block_size"]
        rows = {row.seq_id: row for row in plan.rows}
        running = {seq.seq_id: seq for seq in self.scheduler._running}
        assert plan.rows, "an empty plan"
        assert len(rows) == len(plan.rows), "a sequence has two rows"
        assert len(running) <= config["max_num_seqs"], "too many sequences"
        assert plan.num_tokens <= config["max_num_batched_tokens"], "over the token budget"
        assert set(rows) <= set(running), "a row for a sequence that does not run"
        written = [set() for _ in self.windows]
        for row in plan.rows:
            seq = running[row.seq_id]
            end = row.start + row.num_tokens
            assert row.num_tokens >= 1, "a row without tokens"
            assert row.start == seq.num_computed_tokens, "a row starts where the sequence is not"
            known_end = end - len(row.draft)
            assert known_end <= len(seq.token_ids), "a row beyond the known tokens"
            assert row.samples == (known_end == len(seq.token_ids)), "samples at the wrong place"
            num_sampled = int(row.samples) + len(row.draft)
            assert row.num_logits == num_sampled or self.specs[row.seq_id]["wants_prompt_logits"], "num_logits"
            if row.draft:
                self.check_draft(plan, row, known_end)
            for pool, table, mine in zip(self.scheduler.kv.pools, row.block_tables, written, strict=True):
                for block in range(row.start // block_size, (end - 1) // block_size + 1):
                    assert table[block] not in mine, "two rows write one block"
                    mine.add(table[block])
                    assert pool.ref_count(table[block]) == 1, "a shared block is written"
                    assert pool._digests[table[block]] is None, "a block of the prefix index is written"
        self.check_work(plan, rows, running)

    def check_draft(self, plan, row, known_end):
        """A draft is for a sequence that decodes, is worth checking, and takes nothing that others could use."""
        spec = self.specs[row.seq_id]
        end = known_end + len(row.draft)
        num_prompt_tokens = len(spec["prompt_token_ids"])
        assert known_end - row.start == 1, "a draft behind a part of a prompt"
        assert len(row.draft) <= self.trace.config["num_speculative_tokens"], "a draft is too long"
        assert plan.num_tokens <= MAX_STEP_TOKENS, "drafts in a large step"
        assert len(row.block_tables[0]) == -(-known_end // self.trace.config["block_size"]), "a draft took a block"
        assert end < self.scheduler.max_model_len, "a draft beyond the context"
        assert end - num_prompt_tokens < (spec["max_tokens"] or end), "a draft beyond max_tokens"
        self.events["drafts"] += 1

    def check_work(self, plan, rows, running):
        """Decoding sequences always run; the budget is used as far as there are blocks and the pace allows."""
        for seq in running.values():
            if len(seq.token_ids) - seq.num_computed_tokens == 1:
                assert seq.seq_id in rows, "a decoding sequence was left out"
        is_done = all(
            seq.seq_id in rows and rows[seq.seq_id].start + rows[seq.seq_id].num_tokens >= len(seq.token_ids)
            for seq in running.values()
        )
        config = self.trace.config
        decoding = [seq for seq in running.values() if len(seq.token_ids) - seq.num_computed_tokens == 1]
        if config["prefill_per_decode"] and config["context_per_token"] and decoding:
            context = config["context_per_token"]
            cost = {row.seq_id: (row.num_tokens - len(row.draft)) * (1 + row.start / context) for row in plan.rows}
            beside = sum(cost.pop(seq.seq_id) for seq in decoding)
            pace = max(MIN_WORK, config["prefill_per_decode"] * beside) * (len(running) - len(decoding))
            # A row that gets one token may cost more than its share.
            for seq_id, work in cost.items():
                assert rows[seq_id].num_tokens == 1 or work <= pace, "a chunk that keeps others waiting"
            self.events["paced steps"] += not is_done
            is_free = min(pool.num_free for pool in self.scheduler.kv.pools) > 0
            has_room = len(decoding) < config["max_num_batched_tokens"]
            if is_free and has_room and len(decoding) < len(running):
                assert len(plan.rows) > len(decoding), "no prompt goes on"
        elif plan.num_tokens < config["max_num_batched_tokens"] and not is_done:
            assert min(pool.num_free for pool in self.scheduler.kv.pools) == 0, "budget and blocks left unused"
            self.events["short of blocks"] += 1
        self.events["preemptions"] = self.scheduler.stats().num_preemptions
        self.events["mixed steps"] += len({row.num_tokens == 1 for row in plan.rows}) == 2

    def check_sharing_and_waste(self):
        """Blocks are shared inside a namespace only; slots without a token are fewer than a block a sequence."""
        block_size = self.trace.config["block_size"]
        running = self.scheduler._running
        num_blocks = num_filled = 0
        for index in range(len(self.windows)):
            owners, filled = {}, set()
            for seq in running:
                namespace = namespace_of(self.specs[seq.seq_id])
                for block, block_id in enumerate(seq.tables[index]):
                    if block_id < 0:
                        continue
                    self.events["shared blocks"] += block_id in owners
                    assert owners.setdefault(block_id, namespace) == namespace, "a block shared across namespaces"
                    for offset in range(min(block_size, seq.num_computed_tokens - block * block_size)):
                        filled.add((block_id, offset))
                    self.events["blocks out of the window"] += seq.first_held[index] > 0
            num_blocks += len(owners)
            num_filled += len(filled)
        stats = self.scheduler.stats()
        assert stats.kv_blocks_used == num_blocks, "blocks are used by nobody"
        assert stats.kv_slots_allocated == num_blocks * block_size
        assert stats.kv_slots_used == num_filled, "used slots are miscounted"
        assert num_blocks * block_size - num_filled <= (block_size - 1) * len(running) * len(self.windows), "waste"

    def check_end(self):
        assert set(self.finished) == set(self.got), "a request never ended"
        for spec in self.specs.values():
            request_id = spec["request_id"]
            update = self.finished[request_id]
            token_ids, reason = self.answer_of(spec)
            answer = token_ids[len(spec["prompt_token_ids"]) :]
            assert self.got[request_id] == answer[: len(self.got[request_id])], "the answer differs from the lone one"
            if update.finish_reason not in ("abort", "error"):
                assert self.got[request_id] == answer, "the answer was cut short"
                assert update.finish_reason == reason, "another finish_reason than alone"
                assert update.stop_token_id == (answer[-1] if reason == "stop" else None), "stop_token_id"
                self.check_prompt_logits(spec)
            block_size = self.trace.config["block_size"]
            assert update.num_cached_tokens % block_size == 0, "num_cached_tokens"
            assert update.num_cached_tokens < len(spec["prompt_token_ids"]), "nothing was left to compute"
            self.events["cached tokens"] += update.num_cached_tokens
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0), "something is left over"
        assert all(pool.num_free == pool.num_blocks for pool in self.scheduler.kv.pools), "blocks are lost"

    def check_prompt_logits(self, spec):
        if spec["wants_prompt_logits"]:
            num_prompt_tokens = len(spec["prompt_token_ids"])
            scored = [position for position in self.scored[spec["request_id"]] if position < num_prompt_tokens]
            # The last prompt position samples as well; it may be computed, and asked for, again after a preemption.
            assert scored[:num_prompt_tokens] == list(range(num_prompt_tokens)), "prompt logits missing or repeated"
