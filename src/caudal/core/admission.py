"""Admission: which waiting sequence starts next, with which cached blocks, and in whose place.

A sequence starts when the blocks for all its known tokens are free, beside those that the running sequences still
need for theirs and one block of growth for each. This keeps preemption rare; it is not what keeps things correct.

One that does not fit lets smaller ones past, but only `MAX_OVERTAKES` of them: then everyone of its priority or less
waits until it starts. So it neither blocks the queue nor starves. Nobody is let past one that was preempted: that
would evict the work it left in the prefix cache.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from caudal.core.kv_cache import KVCache
    from caudal.core.request import Sequence
    from caudal.core.waiting_queue import WaitingQueue

MAX_OVERTAKES = 8
MAX_LOOKED_AT = 32
MAX_MISFITS = 4


class Start(NamedTuple):
    """A sequence that may start with its first `num_hit_blocks` blocks cached, once `victims` are preempted."""

    seq: Sequence
    num_hit_blocks: int
    victims: list[Sequence]


class Admission:
    """Chooses whom to start. Remembers the sequence that has been waiting for room, and how often it was passed."""

    def __init__(self, kv: KVCache, max_num_seqs: int) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self._stuck: Sequence | None = None

    def forget(self, seq: Sequence) -> None:
        """A waiting sequence has left."""
        if seq is self._stuck:
            self._stuck = None

    def next_start(self, waiting: WaitingQueue, running: list[Sequence]) -> Start | None:
        """The next sequence to start, or None. The caller starts it before it asks again."""
        loads = Counter(seq.request.tenant for seq in running)
        reserved = self._reserved(running)
        misfits: list[Sequence] = []
        for seq in islice(self._candidates(waiting, loads), MAX_LOOKED_AT):
            num_hit_blocks = self.kv.match(seq, self._max_reuse(seq))
            if self._is_being_computed(seq, num_hit_blocks, running):
                continue
            victims = self._victims(seq, num_hit_blocks, running, reserved)
            if victims is not None:
                self._note_start(seq)
                return Start(seq, num_hit_blocks, victims)
            misfits.append(seq)
            if len(misfits) == MAX_MISFITS or seq.has_started:
                break
        self._note_misfits(misfits)
        return None

    def _note_misfits(self, misfits: list[Sequence]) -> None:
        """Watch over the first of the most urgent that do not fit; a more urgent one takes the place of another."""
        if misfits:
            first = min(misfits, key=lambda seq: seq.rank)
            if self._stuck is None or first.request.priority < self._stuck.request.priority:
                self._stuck = first

    def _candidates(self, waiting: WaitingQueue, loads: Mapping[str, int]) -> Iterator[Sequence]:
        """The queue in fair order, or what is left of it when the stuck sequence was passed too often."""
        stuck = self._stuck
        if stuck is None or stuck.num_overtakes < MAX_OVERTAKES:
            yield from waiting.in_fair_order(loads)
            return
        for seq in waiting.in_fair_order(loads):
            if seq.request.priority >= stuck.request.priority:
                break
            yield seq
        yield stuck

    def _note_start(self, seq: Sequence) -> None:
        """A sequence starts: perhaps the stuck one, perhaps past it."""
        stuck = self._stuck
        if seq is stuck:
            seq.num_overtakes = 0
            self._stuck = None
        elif stuck is not None and seq.request.priority >= stuck.request.priority:
            stuck.num_overtakes += 1

    def _max_reuse(self, seq: Sequence) -> int:
        """Tokens that may come from the prefix cache: the last one must be computed, for its logits."""
        limit = seq.num_tokens - 1
        return min(limit, seq.num_scored_tokens) if seq.request.wants_prompt_logits else limit

    def _is_being_computed(self, seq: Sequence, num_hit_blocks: int, running: list[Sequence]) -> bool:
        """Whether a running sequence will soon publish the first block that `seq` misses: then waiting is cheaper."""
        if not self.kv.enable_prefix_caching:
            return False
        position = num_hit_blocks * self.kv.block_size
        if position + self.kv.block_size > self._max_reuse(seq):
            return False
        digest = seq.digests[num_hit_blocks]
        return any(
            len(other.digests) > num_hit_blocks
            and other.digests[num_hit_blocks] == digest
            and other.num_computed_tokens <= position
            and other.request.priority <= seq.request.priority
            for other in running
        )

    def _reserved(self, running: list[Sequence]) -> list[int]:
        """Per group, free blocks that are spoken for: those running sequences still need, and one more for each."""
        shortfalls = [self.kv.shortfall(seq) for seq in running]
        return [sum(counts) + len(running) for counts in zip(*shortfalls, strict=True)] or [0] * len(self.kv.pools)

    def _victims(
        self, seq: Sequence, num_hit_blocks: int, running: list[Sequence], reserved: list[int]
    ) -> list[Sequence] | None:
        """Whom to preempt so that `seq` can start: nobody, less urgent sequences, or None if that is not enough."""
        free = [pool.num_free for pool in self.kv.pools]
        if len(running) < self.max_num_seqs and _fits(self.kv.blocks_to_start(seq, num_hit_blocks), reserved, free):
            return []
        wanted = self.kv.blocks_to_hold(seq, num_hit_blocks)
        victims = []
        for victim in reversed(running):
            if victim.request.priority <= seq.request.priority:
                return None
            victims.append(victim)
            reserved = [count - short - 1 for count, short in zip(reserved, self.kv.shortfall(victim), strict=True)]
            free = [count + freed for count, freed in zip(free, self.kv.exclusive_blocks(victim), strict=True)]
            if len(running) - len(victims) < self.max_num_seqs and _fits(wanted, reserved, free):
                return victims
        return None


def _fits(wanted: list[int], reserved: list[int], free: list[int]) -> bool:
    """Whether every group has the blocks."""
    return all(want + spoken_for <= have for want, spoken_for, have in zip(wanted, reserved, free, strict=True))
