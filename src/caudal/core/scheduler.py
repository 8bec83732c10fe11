"""Scheduler: decides each step who computes how many tokens, and keeps the books.

Pure: no tensors, no clock, no randomness; the same calls give the same plans. A step is

    plan = scheduler.schedule()             # counts only, no token values but those of drafts
    ...                                     # compute and sample
    updates = scheduler.commit(plan, sampled)

There is no prefill phase and no decode phase: each sequence has tokens known and tokens computed, and a step moves the
second towards the first. Sequences with one token to go (decoding) come first; the rest of the token budget, or as
much of it as `prefill_pace` allows, goes to the others as `fairness` says, and what little `speculation` uses comes
from what is left. Requests may be added and aborted at any time, also between `schedule` and `commit`.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from caudal.core.admission import Admission
from caudal.core.aging import Aging
from caudal.core.fairness import FairShare
from caudal.core.kv_cache import KVCache
from caudal.core.prefill_pace import PrefillPace
from caudal.core.request import FinishReason, Sequence, SequenceUpdate, Status
from caudal.core.speculation import Speculation
from caudal.core.step_plan import PlannedRow, StepPlan
from caudal.core.stopping import finish_reason_of
from caudal.core.waiting_queue import WaitingQueue
from caudal.errors import ConfigError, InvalidParameter, Overloaded, PromptTooLong

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from caudal.core.request import Request
    from caudal.core.speculation import DraftState
    from caudal.core.step_plan import KVGroup

# Makes a named tuple in half the time that its class takes, for the loops that every token runs.
_new = tuple.__new__


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The limits of a scheduler.

    Attributes:
        max_num_seqs: most sequences running at once; each may need a token in each step.
        max_num_batched_tokens: most tokens in one step.
        max_model_len: longest prompt plus answer.
        block_size: tokens in a KV block.
        max_queue_len: most requests beyond those that can run at once; the next is refused as Overloaded.
        enable_prefix_caching: reuse the blocks of a common beginning.
        num_speculative_tokens: most tokens guessed for a sequence in a step; 0 is no speculation.
        prefill_per_decode, context_per_token: of the PrefillPace.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int = 4096
    block_size: int = 32
    max_queue_len: int = 1024
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 0
    prefill_per_decode: float = 0
    context_per_token: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError if a value makes no sense."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                message = f"{name} is {getattr(self, name)}; expected at least 1"
                raise ConfigError(message)
        if self.max_num_seqs > self.max_num_batched_tokens:
            message = (
                f"max_num_seqs is {self.max_num_seqs} but max_num_batched_tokens is {self.max_num_batched_tokens}; "
                "every running sequence needs a token in each step, so lower the first or raise the second"
            )
            raise ConfigError(message)


class SchedulerStats(NamedTuple):
    """Gauges now, and counters since the start. Blocks and slots are summed over KV groups.

    `kv_slots_allocated - kv_slots_used` is the waste: slots of used blocks that hold no token yet.
    Prefix cache queries and hits count prompt tokens of requests that started. Accepted are draft tokens that turned
    out right.
    """

    num_running: int
    num_waiting: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_slots_allocated: int
    kv_slots_used: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


class Scheduler:
    """Sequences, their KV blocks, and the plan of each step."""

    def __init__(self, config: SchedulerConfig, groups: tuple[KVGroup, ...]) -> None:
        self.config = config
        self.kv = KVCache(groups, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
        self.max_model_len = self.kv.max_tokens_alone(config.max_model_len)
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._admission = Admission(self.kv, config.max_num_seqs)
        self._aging = Aging()
        self._fair_share = FairShare(quantum=max(config.block_size, config.max_num_batched_tokens // 16))
        self._speculation = Speculation(
            config.num_speculative_tokens, config.max_num_batched_tokens, config.block_size, self.max_model_len
        )
        self._pace = PrefillPace(config.prefill_per_decode, config.context_per_token)
        self._by_request_id: dict[str, Sequence] = {}
        self._by_seq_id: dict[int, Sequence] = {}
        self._in_flight: StepPlan | None = None
        self._departed: dict[int, Sequence] = {}
        self._next_seq_id = 0
        self._next_step_id = 0
        self._started: list[str] = []
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0
        self._num_preemptions = 0

    # Requests come and go

    def add(self, request: Request, draft_state: DraftState | None = None) -> int:
        """Take a request in and return its seq_id.

        Args:
            request: what is asked for.
            draft_state: who guesses for it; None is those who guess for everybody.

        Raises:
            PromptTooLong: the prompt leaves no room for a token of answer, now or ever.
            Overloaded: the queue is full.
            InvalidParameter: the prompt is empty, or the request_id is that of an unfinished request.
        """
        self._check(request)
        num_prompt_tokens = len(request.prompt_token_ids)
        max_tokens = self.max_model_len if request.max_tokens is None else request.max_tokens
        seq = Sequence(
            seq_id=self._next_seq_id,
            request=request,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=num_prompt_tokens,
            max_num_tokens=min(self.max_model_len, num_prompt_tokens + max_tokens),
            draft_state=draft_state,
        )
        self._next_seq_id += 1
        self._by_request_id[request.request_id] = seq
        self._by_seq_id[seq.seq_id] = seq
        self._waiting.add(seq)
        return seq.seq_id

    def _check(self, request: Request) -> None:
        num_tokens = len(request.prompt_token_ids)
        if num_tokens == 0:
            message = "the prompt has no tokens; expected at least 1"
            raise InvalidParameter(message, parameter="prompt")
        if request.request_id in self._by_request_id:
            message = f"request_id {request.request_id!r} is that of an unfinished request; choose another"
            raise InvalidParameter(message, parameter="request_id")
        if num_tokens + 1 > self.max_model_len:
            is_pool_limit = self.max_model_len < self.config.max_model_len
            knob = "kv_cache_bytes (the KV cache holds no more)" if is_pool_limit else "max_model_len"
            message = (
                f"the prompt has {num_tokens} tokens; with at least one token of answer, prompt and answer may have "
                f"at most {self.max_model_len}; shorten the prompt, or start with a larger {knob}"
            )
            raise PromptTooLong(message, parameter="prompt")
        if len(self._by_request_id) >= self.config.max_num_seqs + self.config.max_queue_len:
            message = f"{len(self._by_request_id)} requests are running or waiting, and no more may; try again later"
            raise Overloaded(message)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> SequenceUpdate | None:
        """Forget a request and free its blocks at once. Returns its last update, or None if it is unknown.

        Another `reason` suits a request that ends outside: STOP for a stop string, ERROR for a fault of its own.
        """
        seq = self._by_request_id.get(request_id)
        if seq is None:
            return None
        self._leave(seq)
        return SequenceUpdate(request_id, (), reason, None, seq.num_cached_tokens)

    def _leave(self, seq: Sequence) -> None:
        """End a sequence, wherever it is."""
        if seq.status is Status.RUNNING:
            self._running.remove(seq)
            self.kv.release(seq)
        else:
            self._waiting.remove(seq)
            self._admission.forget(seq)
        seq.status = Status.FINISHED
        del self._by_request_id[seq.request.request_id]
        del self._by_seq_id[seq.seq_id]
        if self._in_flight is not None:
            self._departed[seq.seq_id] = seq

    # A step

    def schedule(self) -> StepPlan | None:
        """Plan a step, or return None if there is nothing to do. The plan must be committed, or failed, first."""
        assert self._in_flight is None, "schedule() before the plan in flight was committed or failed"
        if self._waiting:
            self._admit()
        if not self._running:
            return None
        rows: list[PlannedRow] = []
        prefilling = self._plan_decodes(rows)
        if prefilling:
            self._plan_prefills(rows, prefilling)
        if self.config.num_speculative_tokens:
            self._speculation.add_drafts(rows, self._by_seq_id)
        self._in_flight = StepPlan(self._next_step_id, self.config.block_size, tuple(rows))
        self._next_step_id += 1
        return self._in_flight

    def _admit(self) -> None:
        """Start waiting sequences while there is room, preempting less urgent ones for them."""
        if len(self._running) >= self.config.max_num_seqs and (
            self._running[-1].request.priority <= self._waiting.most_urgent_priority()
        ):
            return
        while (start := self._admission.next_start(self._waiting, self._running)) is not None:
            for victim in start.victims:
                self._preempt(victim)
            seq = start.seq
            self._waiting.remove(seq)
            self._aging.note_start(seq, self._waiting)
            self.kv.start(seq, start.num_hit_blocks)
            seq.status = Status.RUNNING
            insort(self._running, seq, key=lambda other: other.rank)
            if not seq.has_started:
                seq.has_started = True
                self._started.append(seq.request_id)
                seq.num_cached_tokens = seq.num_computed_tokens
                self._num_queried_tokens += seq.num_prompt_tokens
                self._num_hit_tokens += seq.num_cached_tokens

    def _plan_decodes(self, rows: list[PlannedRow]) -> list[Sequence]:
        """Plan every sequence with one token to go, making room for it if need be. Returns the others."""
        prefilling = []
        for seq in tuple(self._running):
            if seq.status is not Status.RUNNING:
                continue
            start = seq.num_computed_tokens
            if len(seq.token_ids) - start != 1:
                prefilling.append(seq)
                continue
            if start == seq.num_slots and not self._make_room(seq):
                continue
            if seq.wants_prompt_logits:
                rows.append(self._row(seq, start + 1))
            else:
                rows.append(_new(PlannedRow, (seq.seq_id, start, 1, 1, True, seq.block_tables, ())))
        return [seq for seq in prefilling if seq.status is Status.RUNNING]

    def _make_room(self, seq: Sequence) -> bool:
        """Find a block for the next token of `seq`, preempting from the last rank up. False if that is `seq`."""
        while not self.kv.grow(seq, seq.num_computed_tokens + 1):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _plan_prefills(self, rows: list[PlannedRow], prefilling: list[Sequence]) -> None:
        """Share what is left of the budget, as far as blocks allow. If that plans nothing, preempt and try again."""
        budget = self.config.max_num_batched_tokens - len(rows)
        work = self._pace.work_beside(rows, len(prefilling))
        if work is not None:
            budget = min(budget, work)
        while True:
            shares = self._fair_share.share(budget, prefilling)
            for seq in prefilling:
                start = seq.num_computed_tokens
                share = shares.get(seq.seq_id, 0)
                num_tokens = share if work is None else self._pace.tokens(share, start)
                end = min(start + num_tokens, self.kv.max_reach(seq))
                if end > start and self.kv.grow(seq, end):
                    rows.append(self._row(seq, end))
            if rows:
                return
            assert len(prefilling) > 1, "a sequence alone does not fit the KV cache"
            self._preempt(prefilling.pop())

    def _row(self, seq: Sequence, end: int) -> PlannedRow:
        """The row that computes the tokens of `seq` from where it is to `end`."""
        start = seq.num_computed_tokens
        samples = end == len(seq.token_ids)
        num_logits = int(samples)
        if seq.request.wants_prompt_logits and seq.num_scored_tokens < seq.num_prompt_tokens:
            num_logits = max(num_logits, end - max(start, seq.num_scored_tokens))
        return PlannedRow(seq.seq_id, start, end - start, num_logits, samples, seq.block_tables)

    def _preempt(self, seq: Sequence) -> None:
        """Send a running sequence back to its place in the queue. Its full blocks stay in the prefix cache."""
        self._running.remove(seq)
        self.kv.release(seq)
        seq.num_computed_tokens = 0
        seq.status = Status.WAITING
        self._waiting.add(seq)
        self._num_preemptions += 1

    def commit(self, plan: StepPlan, sampled: SequenceOf[int]) -> list[SequenceUpdate]:
        """Record that `plan` was computed.

        Args:
            plan: what `schedule` returned last.
            sampled: for each of `plan.sampling_rows`, in order, the token behind its last known one and behind each
                token of its draft; negative where none can follow, which ends the sequence with an error. Those of
                sequences that were aborted meanwhile are ignored.

        Returns:
            An update for each sequence that got a token, or failed to.
        """
        assert plan is self._in_flight, "commit() of a plan that is not in flight"
        self._land()
        updates = []
        num_read = 0
        for row in plan.rows:
            seq_id, start, num_tokens, _, samples, _, draft = row
            first = num_read
            num_read += samples + len(draft)
            seq = self._by_seq_id.get(seq_id)
            if seq is None:
                continue
            num_computed = start + num_tokens
            reason = None
            if samples and not draft and sampled[first] >= 0:  # nearly always: what every token passes through
                token_id = sampled[first]
                new_token_ids: tuple[int, ...] = (token_id,)
                seq.token_ids.append(token_id)
                if token_id in seq.stop_token_ids or len(seq.token_ids) >= seq.max_num_tokens:
                    reason = finish_reason_of(seq, self.max_model_len)
            elif samples:
                new_token_ids, reason = self._extend(seq, draft, sampled, first)
                num_computed += len(new_token_ids) - 1 - len(draft)
            seq.num_computed_tokens = num_computed
            if seq.wants_prompt_logits:
                seq.num_scored_tokens = max(seq.num_scored_tokens, min(num_computed, seq.num_prompt_tokens))
            if num_computed >= seq.next_milestone:
                self.kv.advance(seq)
            if samples:
                if reason is not None:
                    self._leave(seq)
                stop_token_id = new_token_ids[-1] if reason is FinishReason.STOP else None
                fields = (seq.request_id, new_token_ids, reason, stop_token_id, seq.num_cached_tokens, first)
                updates.append(_new(SequenceUpdate, fields))
        assert num_read == len(sampled), f"{len(sampled)} tokens sampled; expected {num_read}"
        return updates

    def _extend(
        self, seq: Sequence, draft: tuple[int, ...], sampled: SequenceOf[int], first: int
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Add the tokens sampled from `first` on, up to one that was not guessed or is the last, and say why it is."""
        reason = None
        end = first
        for guess in (*draft, None):
            token_id = sampled[end]
            if token_id < 0:
                reason = FinishReason.ERROR
                break
            end += 1
            seq.token_ids.append(token_id)
            reason = finish_reason_of(seq, self.max_model_len)
            if reason is not None or token_id != guess:
                break
        if draft:
            self._speculation.learn(seq, len(draft), max(0, end - first - 1))
        return tuple(sampled[first:end]), reason

    def fail(self, plan: StepPlan) -> list[SequenceUpdate]:
        """End the requests of a plan that could not be computed. The others go on."""
        assert plan is self._in_flight, "fail() of a plan that is not in flight"
        self._land()
        failed = [self._by_seq_id[row.seq_id] for row in plan.rows if row.seq_id in self._by_seq_id]
        updates = [self.abort(seq.request.request_id, FinishReason.ERROR) for seq in failed]
        return [update for update in updates if update is not None]

    def _land(self) -> None:
        """The plan in flight has arrived."""
        self._in_flight = None
        self._departed.clear()

    # Questions

    def take_started(self) -> list[str]:
        """Ids of the requests that were planned for the first time since the last call."""
        started = self._started
        if started:
            self._started = []
        return started

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self._by_seq_id)

    def sequence(self, request_id: str) -> Sequence | None:
        """The progress of an unfinished request, or None. Read only."""
        return self._by_request_id.get(request_id)

    def sequence_of(self, seq_id: int) -> Sequence:
        """The sequence of a planned row; also if it was aborted while the plan is in flight. Read only."""
        seq = self._by_seq_id.get(seq_id)
        return self._departed[seq_id] if seq is None else seq

    def sequences_of(self, plan: StepPlan) -> list[Sequence]:
        """The sequences of a plan's rows, in order. Read only."""
        if self._departed:
            return [self.sequence_of(row.seq_id) for row in plan.rows]
        return [self._by_seq_id[row.seq_id] for row in plan.rows]

    def tokens_of(self, seq_id: int) -> list[int]:
        """Token ids of the sequence of a planned row: prompt, then answer so far. Read only."""
        return self.sequence_of(seq_id).token_ids

    def stats(self) -> SchedulerStats:
        """Gauges and counters. Walks over the running sequences."""
        blocks_used = sum(pool.num_used for pool in self.kv.pools)
        slots = blocks_used * self.config.block_size
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_blocks_total=sum(pool.num_blocks for pool in self.kv.pools),
            kv_blocks_used=blocks_used,
            kv_slots_allocated=slots,
            kv_slots_used=slots - sum(self.kv.num_unused_slots(seq) for seq in self._running),
            prefix_cache_queries=self._num_queried_tokens,
            prefix_cache_hits=self._num_hit_tokens,
            num_preemptions=self._num_preemptions,
            num_drafts=self._speculation.num_drafts,
            num_draft_tokens=self._speculation.num_draft_tokens,
            num_accepted_tokens=self._speculation.num_accepted_tokens,
        )

    def check_integrity(self) -> None:
        """Assert that every sequence is in one place and every block is accounted for. For tests; slow."""
        waiting = sorted(self._waiting, key=lambda seq: seq.seq_id)
        everyone = sorted([*waiting, *self._running], key=lambda seq: seq.seq_id)
        assert everyone == list(self._by_seq_id.values()), "a sequence is lost or in two places"
        assert len(self._waiting) == len(waiting), "the queue's length is wrong"
        assert all(self._by_request_id[seq.request.request_id] is seq for seq in everyone), "request ids are mixed up"
        assert self._running == sorted(self._running, key=lambda seq: seq.rank), "running sequences out of order"
        assert all(seq.status is Status.RUNNING for seq in self._running), "a running sequence says it is not"
        assert all(seq.status is Status.WAITING for seq in waiting), "a waiting sequence says it is not"
        assert all(seq.num_computed_tokens == 0 for seq in waiting), "a waiting sequence has computed tokens"
        assert all(seq.num_remaining_tokens > 0 for seq in everyone), "a sequence has nothing left to compute"
        self.kv.check_integrity(self._running)
