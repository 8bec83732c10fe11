"""Bugs planted in the scheduler's source, one at a time. The traces and scenes must catch every one of them."""

import importlib
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import scheduler_fairness
from scheduler_traces import Run, make_trace

import caudal.core

SOURCE = Path(caudal.core.__file__).parent
MAX_TRACES = 400


@dataclass(frozen=True)
class Bug:
    """`right` occurs once in core/`file`; `wrong` takes its place."""

    name: str
    file: str
    right: str
    wrong: str


BUGS = (
    # The block pool
    Bug("a hit is not counted", "block_pool.py", "        self._ref_counts[block_id] += 1", "        pass"),
    Bug(
        "a claimed block stays in the free list",
        "block_pool.py",
        "            del self._idle[block_id]",
        "            pass",
    ),
    Bug(
        "a block is freed while others hold it",
        "block_pool.py",
        "        if count == 0:",
        "        if count <= 1:",
    ),
    Bug(
        "an evicted block can still be found",
        "block_pool.py",
        "            self._forget(block_id)",
        "            pass",
    ),
    Bug(
        "the newest idle block goes first and with it what was just let go",
        "block_pool.py",
        "        self._ref_counts[block_id] = 1",
        "        self._ref_counts[block_id] = max(1, self._ref_counts[0])",
    ),
    Bug(
        "a free block is handed out though it is used",
        "block_pool.py",
        "            self._next_fresh += 1",
        "            self._next_fresh += self._next_fresh < self.num_blocks - 1",
    ),
    # Names of blocks
    Bug(
        "the chain forgets the block before",
        "prefix_cache.py",
        "parent = digests[-1] if digests else",
        "parent =",
    ),
    Bug("the salt is not part of the name", "prefix_cache.py", "blake2b(head + salt + adapter,", "blake2b(adapter,"),
    Bug("the adapter is not part of the name", "prefix_cache.py", "blake2b(head + salt + adapter,", "blake2b(salt,"),
    Bug(
        "a name leaves out the last token of the block",
        "prefix_cache.py",
        "(block + 1) * block_size]",
        "(block + 1) * block_size - 1]",
    ),
    # The KV cache
    Bug(
        "a block is published before it is full",
        "kv_cache.py",
        "        num_full = seq.num_computed_tokens // self.block_size",
        "        num_full = min(-(-seq.num_computed_tokens // self.block_size), len(seq.tables[0]))",
    ),
    Bug(
        "a window lets a block go a token early",
        "kv_cache.py",
        "max(0, position - window + 1) // self.block_size",
        "max(0, position - window + 2) // self.block_size",
    ),
    Bug(
        "a window lets nothing go",
        "kv_cache.py",
        "            for block in range(seq.first_held[index], first):",
        "            for block in range(0):",
    ),
    Bug(
        "a hit is not checked in sliding groups",
        "kv_cache.py",
        "            if all(run[count] >= reach for",
        "            if all(run[count] >= reach - 1 for",
    ),
    Bug(
        "a block that left the window is released again at the end",
        "kv_cache.py",
        "                table[block] = -1",
        "                table[block] = table[block]",
    ),
    Bug(
        "release keeps the last block",
        "kv_cache.py",
        "for block_id in reversed(table):",
        "for block_id in table[:-1]:",
    ),
    Bug(
        "tables given to the step are old",
        "kv_cache.py",
        "            table.extend(pool.allocate() for _ in range(num_new))\n        self._freeze(seq)",
        "            table.extend(pool.allocate() for _ in range(num_new))",
    ),
    Bug(
        "a window is looked at a block too late",
        "kv_cache.py",
        "(first + 1) * self.block_size + group.window - 1",
        "(first + 2) * self.block_size + group.window - 1",
    ),
    Bug("the last block is not allocated", "kv_cache.py", "num_new = -(-num_tokens //", "num_new = (num_tokens //"),
    # Admission
    Bug(
        "a hit of the whole prompt leaves nothing to compute",
        "admission.py",
        "limit = seq.num_tokens - 1",
        "limit = seq.num_tokens",
    ),
    Bug(
        "prompt logits are lost to the prefix cache",
        "admission.py",
        "if seq.request.wants_prompt_logits else limit",
        "if seq.request.wants_prompt_logits and seq.has_started else limit",
    ),
    Bug(
        "one sequence too many",
        "admission.py",
        "if len(running) < self.max_num_seqs and",
        "if len(running) <= self.max_num_seqs and",
    ),
    Bug(
        "an aborted sequence is still waited for",
        "admission.py",
        "        if seq is self._stuck:\n            self._stuck = None",
        "        pass",
    ),
    Bug(
        "a less urgent request that is stuck hides a more urgent one",
        "admission.py",
        "if self._stuck is None or first.request.priority < self._stuck.request.priority:",
        "if self._stuck is None:",
    ),
    Bug("overtaking has no limit", "admission.py", "stuck.num_overtakes += 1", "stuck.num_overtakes += 0"),
    Bug("whoever does not fit blocks the queue", "admission.py", "MAX_MISFITS = 4", "MAX_MISFITS = 1"),
    Bug(
        "urgent requests do not preempt",
        "admission.py",
        "            if victim.request.priority <= seq.request.priority:",
        "            if True:",
    ),
    Bug(
        "a common prompt is computed by everyone",
        "admission.py",
        "            if self._is_being_computed(",
        "            if False and self._is_being_computed(",
    ),
    # The pace of prompts
    Bug("few decoding rows stop a prompt", "prefill_pace.py", "max(MIN_WORK, int(", "max(1, int("),
    Bug("the pace is the least", "prefill_pace.py", "max(MIN_WORK, int(self.per_decode * work))", "MIN_WORK"),
    Bug("those who wait count as one", "prefill_pace.py", "num_prompts * max(", "max("),
    Bug("the pace holds where nobody decodes", "prefill_pace.py", "not rows or ", ""),
    Bug("a deep prompt costs no more", "prefill_pace.py", "(self.context_per_token + start)", "self.context_per_token"),
    Bug("a very deep prompt gets nothing", "prefill_pace.py", "return max(1, work *", "return max(0, work *"),
    Bug("the pace is forgotten", "scheduler.py", "        if work is not None:", "        if False:"),
    # Fairness
    Bug("turns are forgotten", "waiting_queue.py", "[seq.request.tenant] = self._num_turns", "[''] = 0"),
    Bug("a newcomer is last", "waiting_queue.py", "turns.get(tenant, 0)", "turns.get(tenant, 10**9)"),
    Bug("nobody ages", "aging.py", "MAX_PASSES = 16", "MAX_PASSES = 10**9"),
    Bug("urgent prompts leave nothing", "fairness.py", "LEFT_TO_OTHERS = 16", "LEFT_TO_OTHERS = 10**9"),
    Bug("the oldest prompt takes all", "fairness.py", "if not others else -(-budget // 2)", "if True else 0"),
    # The scheduler
    Bug(
        "the budget is one too large",
        "scheduler.py",
        "budget = self.config.max_num_batched_tokens - len(rows)",
        "budget = self.config.max_num_batched_tokens - len(rows) + 1",
    ),
    Bug(
        "decoding sequences do not count",
        "scheduler.py",
        "budget = self.config.max_num_batched_tokens - len(rows)",
        "budget = self.config.max_num_batched_tokens",
    ),
    Bug(
        "a chunk starts a token early",
        "scheduler.py",
        "num_computed = start + num_tokens\n",
        "num_computed = start + num_tokens - (num_tokens > 2)\n",
    ),
    Bug(
        "a chunk starts a token late",
        "scheduler.py",
        "num_computed = start + num_tokens\n",
        "num_computed = start + num_tokens + (not samples)\n",
    ),
    Bug(
        "a preempted sequence believes its tokens are computed",
        "scheduler.py",
        "        seq.num_computed_tokens = 0\n",
        "",
    ),
    Bug(
        "a preempted sequence forgets its answer",
        "scheduler.py",
        "        seq.num_computed_tokens = 0\n",
        "        seq.num_computed_tokens = 0\n        del seq.token_ids[seq.num_prompt_tokens :]\n",
    ),
    Bug(
        "preemption keeps the blocks",
        "scheduler.py",
        "        self.kv.release(seq)\n        seq.num_computed_tokens = 0",
        "        seq.num_computed_tokens = 0",
    ),
    Bug(
        "an abort keeps the blocks",
        "scheduler.py",
        "            self.kv.release(seq)\n        else:",
        "        else:",
    ),
    Bug(
        "blocks are released twice",
        "kv_cache.py",
        "                    pool.release(block_id)\n",
        "                    pool.release(block_id)\n                    pool.release(block_id)\n",
    ),
    Bug(
        "decoding waits for prompts",
        "scheduler.py",
        "            if len(seq.token_ids) - start != 1:",
        "            if len(seq.token_ids) - start != 1 or len(self._running) > 2:",
    ),
    Bug(
        "samples in the middle of a prompt",
        "scheduler.py",
        "samples = end == len(seq.token_ids)",
        "samples = end >= len(seq.token_ids) - 1",
    ),
    Bug(
        "the token of an aborted sequence goes to the next one",
        "scheduler.py",
        "            if seq is None:\n                continue\n            num_computed",
        "            if seq is None:\n                num_read = first\n"
        "                continue\n            num_computed",
    ),
    Bug(
        "an aborted sequence gets a token",
        "scheduler.py",
        "seq = self._by_seq_id.get(seq_id)\n            if",
        "seq = self._by_seq_id.get(seq_id) or departed.get(seq_id)\n            if",
    ),
    Bug(
        "prompt logits are given twice",
        "scheduler.py",
        "end - max(start, seq.num_scored_tokens))",
        "end - start + (start > 0))",
    ),
    Bug("a failed step ends nobody", "scheduler.py", "for seq in failed]", "for seq in failed[1:]]"),
    Bug(
        "cached tokens are counted again after a preemption",
        "scheduler.py",
        "            if not seq.has_started:",
        "            if True:",
    ),
    # Speculation
    Bug(
        "guesses are not checked",
        "scheduler.py",
        "token_id != guess",
        "guess is None",
    ),
    Bug(
        "a wrong guess counts as computed",
        "scheduler.py",
        "num_computed += len(new_token_ids) - 1 - len(draft)",
        "num_computed += 0",
    ),
    Bug(
        "an answer goes on behind its end inside a draft",
        "scheduler.py",
        "if reason is not None or token_id",
        "if token_id",
    ),
    Bug(
        "a draft writes beyond its block",
        "speculation.py",
        "return min(num_free_slots, num_more_tokens - 1)",
        "return min(num_free_slots + 1, num_more_tokens - 1)",
    ),
    Bug(
        "a draft leaves no room for a token behind it",
        "speculation.py",
        "return min(num_free_slots, num_more_tokens - 1)",
        "return min(num_free_slots, num_more_tokens)",
    ),
    Bug(
        "drafts are taken from a full step",
        "speculation.py",
        "room = self._max_step_tokens - sum(row.num_tokens for row in rows)",
        "room = self._max_step_tokens",
    ),
    Bug(
        "a draft behind a part of a prompt",
        "speculation.py",
        "if limit < 1 or row.num_tokens > 1 or not row.samples:",
        "if limit < 1:",
    ),
    Bug(
        "the token that ends an answer goes unseen",
        "scheduler.py",
        "if token_id in seq.stop_token_ids or len",
        "if len",
    ),
    Bug(
        "the last token that there is room for goes unseen",
        "scheduler.py",
        "or len(seq.token_ids) >= seq.max_num_tokens:",
        "or len(seq.token_ids) > seq.max_num_tokens:",
    ),
    Bug("room for a token is not looked for", "scheduler.py", "if start == seq.num_slots and", "if start < 0 and"),
    # Stopping
    Bug(
        "min_tokens is one short",
        "stopping.py",
        "num_answered > request.min_tokens",
        "num_answered >= request.min_tokens",
    ),
    Bug("the context is one too long", "stopping.py", "num_tokens >= max_model_len", "num_tokens > max_model_len"),
    # Fairness
    Bug(
        "the oldest takes all",
        "fairness.py",
        "half = budget if not others else",
        "half = budget if True else",
    ),
    Bug("the oldest takes nothing", "fairness.py", "head_start = min(half,", "head_start = min(0,"),
    Bug(
        "tokens are shared by request, not by tenant",
        "fairness.py",
        ".setdefault(seq.request.tenant, [])",
        '.setdefault("", [])',
    ),
    Bug(
        "a turn ends only when its tenant has all it wants",
        "fairness.py",
        "            if ring[tenant] == 0:\n",
        "            if grants[tenant] == demands[tenant]:\n",
    ),
    Bug(
        "slots go to whoever asks first",
        "waiting_queue.py",
        "order = sorted(tenants, key=ranks.__getitem__)",
        "order = list(tenants)[:1]",
    ),
)


def plant(bug, folder):
    """Write a copy of core/ with the bug in it, under a name of its own."""
    package = folder / "planted_core"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in package.glob("*.py"):
        text = path.read_text()
        if path.name == bug.file:
            assert text.count(bug.right) == 1, f"{bug.right!r} occurs {text.count(bug.right)} times in {bug.file}"
            text = text.replace(bug.right, bug.wrong)
        path.write_text(text.replace("caudal.core", "planted_core"))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Plants a bug and imports the result; forgets it afterwards."""

    def load_core(bug):
        plant(bug, tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        scheduler = importlib.import_module("planted_core.scheduler")
        request = importlib.import_module("planted_core.request")
        step_plan = importlib.import_module("planted_core.step_plan")
        return SimpleNamespace(
            Scheduler=scheduler.Scheduler,
            SchedulerConfig=scheduler.SchedulerConfig,
            KVGroup=step_plan.KVGroup,
            Request=request.Request,
        )

    yield load_core
    for name in [name for name in sys.modules if name.split(".")[0] == "planted_core"]:
        del sys.modules[name]


def first_complaint(core):
    """What the scenes or the traces say against this core, or None."""
    try:
        for scenario in scheduler_fairness.SCENARIOS:
            where = scenario.__name__
            scenario(core)
        for seed in range(MAX_TRACES):
            where = f"trace {seed}"
            Run(make_trace(random.Random(seed)), core).go()
    except Exception as error:  # noqa: BLE001 - a planted bug may break anything
        return f"{where}: {error!r}"
    return None


def test_the_true_source_passes(load):
    assert first_complaint(load(Bug("none", "stopping.py", ">= max_model_len", ">= max_model_len"))) is None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_a_planted_bug_is_caught(bug, load):
    assert first_complaint(load(bug)) is not None, f"survived {MAX_TRACES} traces: {bug.name}"
