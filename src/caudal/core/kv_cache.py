"""KVCache: the block tables of sequences over all KV groups.

The tables of a sequence have the same length in every group: entry i holds tokens [i * block_size, (i + 1) *
block_size). A sliding group keeps only the entries that its window still reaches; the others are -1.

Only full, computed blocks are shared, and new tokens always go into blocks behind them. So a shared block is never
written and nothing needs to be copied on write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.core.block_pool import BlockPool
from caudal.core.prefix_cache import extend_digests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caudal.core.request import Sequence
    from caudal.core.step_plan import KVGroup


class KVCache:
    """Gives sequences their blocks, takes them back, and finds common beginnings again."""

    def __init__(self, groups: tuple[KVGroup, ...], block_size: int, *, enable_prefix_caching: bool) -> None:
        self.groups = groups
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pools = tuple(BlockPool(group.num_blocks, block_size) for group in groups)
        self._spans = tuple(self._span(group) for group in groups)
        self._has_windows = any(group.window is not None for group in groups)

    def _span(self, group: KVGroup) -> int | None:
        """Most blocks that a window can touch; None without a window. Its first token may be a block's last."""
        return None if group.window is None else (group.window - 2) // self.block_size + 2

    def max_tokens_alone(self, limit: int) -> int:
        """The longest sequence, at most `limit` tokens, that fits every pool when nothing else runs."""
        for group, span in zip(self.groups, self._spans, strict=True):
            if span is None or span > group.num_blocks:
                limit = min(limit, group.num_blocks * self.block_size)
        return limit

    def first_needed(self, group: int, position: int) -> int:
        """The first block that a query at `position` still reads."""
        window = self.groups[group].window
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    # Finding common beginnings

    def match(self, seq: Sequence, max_tokens: int) -> int:
        """How many leading blocks of `seq` every group can give, covering at most `max_tokens` tokens.

        Full groups must hold all of them; sliding groups those that the query behind them still reads.
        """
        if not self.enable_prefix_caching or max_tokens < self.block_size:
            return 0
        num_blocks = max_tokens // self.block_size
        extend_digests(seq, num_blocks, self.block_size)
        for pool, group in zip(self.pools, self.groups, strict=True):
            if group.window is None:
                misses = (block for block in range(num_blocks) if pool.find(seq.digests[block]) is None)
                num_blocks = next(misses, num_blocks)
        if not self._has_windows:
            return num_blocks
        runs = [self._runs(index, seq, num_blocks) for index, group in enumerate(self.groups) if group.window]
        indices = [index for index, group in enumerate(self.groups) if group.window]
        for count in range(num_blocks, 0, -1):
            reaches = (count - self.first_needed(index, count * self.block_size) for index in indices)
            if all(run[count] >= reach for run, reach in zip(runs, reaches, strict=True)):
                return count
        return 0

    def _runs(self, group: int, seq: Sequence, num_blocks: int) -> list[int]:
        """For each count of leading blocks, how many at their end are in the group's index without a gap."""
        runs = [0]
        for digest in seq.digests[:num_blocks]:
            runs.append(0 if self.pools[group].find(digest) is None else runs[-1] + 1)
        return runs

    def start(self, seq: Sequence, num_blocks: int) -> None:
        """Give `seq` empty tables, or its first `num_blocks` blocks as `match` found them."""
        seq.tables = []
        for index, pool in enumerate(self.pools):
            first = self.first_needed(index, num_blocks * self.block_size)
            table = [-1] * first
            for digest in seq.digests[first:num_blocks]:
                block_id = pool.find(digest)
                assert block_id is not None, "a matched block has left the index"
                pool.acquire(block_id)
                table.append(block_id)
            seq.tables.append(table)
        seq.first_held = [self.first_needed(index, num_blocks * self.block_size) for index in range(len(self.pools))]
        seq.num_published_blocks = num_blocks
        seq.num_computed_tokens = num_blocks * self.block_size
        self._set_milestone(seq)
        self._freeze(seq)

    # Room

    def blocks_to_start(self, seq: Sequence, num_hit_blocks: int) -> list[int]:
        """Per group, how many free blocks it takes to start `seq` from its hits and compute what is known of it."""
        num_blocks = -(-seq.num_tokens // self.block_size)
        counts = []
        for index, pool in enumerate(self.pools):
            first = self.first_needed(index, num_hit_blocks * self.block_size)
            found = [pool.find(digest) for digest in seq.digests[first:num_hit_blocks]]
            idle = sum(block_id is not None and pool.ref_count(block_id) == 0 for block_id in found)
            counts.append(idle + self._still_needed(index, num_blocks - num_hit_blocks, num_hit_blocks - first))
        return counts

    def blocks_to_hold(self, seq: Sequence, num_hit_blocks: int) -> list[int]:
        """The same if none of the hits were held by others: the most it can take."""
        num_blocks = -(-seq.num_tokens // self.block_size)
        counts = []
        for index in range(len(self.pools)):
            num_held = num_hit_blocks - self.first_needed(index, num_hit_blocks * self.block_size)
            counts.append(num_held + self._still_needed(index, num_blocks - num_hit_blocks, num_held))
        return counts

    def shortfall(self, seq: Sequence) -> list[int]:
        """Per group, how many more blocks a running sequence needs for the tokens known of it."""
        num_new = -(-seq.num_tokens // self.block_size) - len(seq.tables[0])
        return [
            self._still_needed(index, num_new, len(table) - first)
            for index, (table, first) in enumerate(zip(seq.tables, seq.first_held, strict=True))
        ]

    def _still_needed(self, group: int, num_new: int, num_held: int) -> int:
        """New blocks to reach the end, when those that leave the window can be used again."""
        span = self._spans[group]
        return max(0, num_new if span is None else min(num_new, span - num_held))

    def exclusive_blocks(self, seq: Sequence) -> list[int]:
        """Per group, how many blocks become free when `seq` is released."""
        return [
            sum(block_id >= 0 and pool.ref_count(block_id) == 1 for block_id in table)
            for pool, table in zip(self.pools, seq.tables, strict=True)
        ]

    def max_reach(self, seq: Sequence) -> int:
        """Tokens that the tables of `seq` could cover if it took every free block."""
        return (len(seq.tables[0]) + min(pool.num_free for pool in self.pools)) * self.block_size

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Extend the tables of `seq` to cover `num_tokens`. Returns False, changing nothing, if blocks are short."""
        num_new = -(-num_tokens // self.block_size) - len(seq.tables[0])
        if num_new <= 0:
            return True
        if any(pool.num_free < num_new for pool in self.pools):
            return False
        for pool, table in zip(self.pools, seq.tables, strict=True):
            table.extend(pool.allocate() for _ in range(num_new))
        self._freeze(seq)
        return True

    # Progress

    def advance(self, seq: Sequence) -> None:
        """After a step: publish the blocks that are now full, and let go of those that left a window."""
        num_full = seq.num_computed_tokens // self.block_size
        if self.enable_prefix_caching and num_full > seq.num_published_blocks:
            extend_digests(seq, num_full, self.block_size)
            for pool, table in zip(self.pools, seq.tables, strict=True):
                for block in range(seq.num_published_blocks, num_full):
                    pool.publish(table[block], seq.digests[block])
            seq.num_published_blocks = num_full
        if self._has_windows:
            self._trim(seq)
        self._set_milestone(seq)

    def _set_milestone(self, seq: Sequence) -> None:
        """Note when a block will be full or leave a window: `advance` has nothing to do before."""
        milestone = (seq.num_computed_tokens // self.block_size + 1) * self.block_size
        for group, first in zip(self.groups, seq.first_held, strict=True):
            if group.window is not None:
                milestone = min(milestone, (first + 1) * self.block_size + group.window - 1)
        seq.next_milestone = milestone

    def _trim(self, seq: Sequence) -> None:
        """Release the blocks that the next query of `seq` cannot see."""
        changed = False
        for index, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
            first = self.first_needed(index, seq.num_computed_tokens)
            for block in range(seq.first_held[index], first):
                pool.release(table[block])
                table[block] = -1
                changed = True
            seq.first_held[index] = max(first, seq.first_held[index])
        if changed:
            self._freeze(seq)

    def release(self, seq: Sequence) -> None:
        """Take all blocks back. The last ones are let go first, so that beginnings stay in the cache longest."""
        for pool, table in zip(self.pools, seq.tables, strict=True):
            for block_id in reversed(table):
                if block_id >= 0:
                    pool.release(block_id)
        seq.tables = [[] for _ in self.pools]
        seq.first_held = [0] * len(self.pools)
        seq.num_published_blocks = 0
        self._freeze(seq)

    def _freeze(self, seq: Sequence) -> None:
        seq.block_tables = tuple(tuple(table) for table in seq.tables)
        seq.num_slots = len(seq.tables[0]) * self.block_size

    # Books

    def num_unused_slots(self, seq: Sequence) -> int:
        """Slots of the blocks of `seq`, over all groups, that hold no token yet."""
        return (len(seq.tables[0]) * self.block_size - seq.num_computed_tokens) * len(self.pools)

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Assert that tables, pools and windows agree."""
        running = list(running)
        for index, pool in enumerate(self.pools):
            tables = [seq.tables[index] for seq in running]
            pool.check_integrity(block_id for table in tables for block_id in table if block_id >= 0)
            for seq in running:
                table = seq.tables[index]
                first = self.first_needed(index, seq.num_computed_tokens)
                assert len(table) == len(seq.tables[0]), "tables of one sequence differ in length"
                assert len(table) * self.block_size >= seq.num_computed_tokens, "computed tokens without a block"
                assert seq.first_held[index] == first, "a window holds too much or too little"
                assert all((block_id >= 0) == (i >= first) for i, block_id in enumerate(table)), "a hole in a table"
                assert seq.block_tables[index] == tuple(table), "block_tables is out of date"
