"""BlockPool: the KV blocks of one group, counted by reference, found again by the digest of what they hold.

A block is in exactly one of four states:

    used    referenced by at least one sequence, perhaps in the index
    blank   free, and nothing worth keeping in it
    fresh   free and never touched, so that its memory costs nothing yet
    idle    free, and in the index: it may be claimed again until its memory is needed

They are handed out in that order: blank first, then fresh, then the idle block that was let go longest ago. So
cached blocks cost nothing and are lost only when nothing else is free. The order is deterministic.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of `block_size` tokens. Blocks in the index are full and never written again."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._block_ids: dict[bytes, int] = {}
        self._blank: list[int] = []
        self._next_fresh = 0
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still hand out."""
        return len(self._blank) + self.num_blocks - self._next_fresh + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that a sequence references."""
        return self.num_blocks - self.num_free

    def allocate(self) -> int:
        """Hand out a block, referenced once. There must be a free one."""
        if self._blank:
            block_id = self._blank.pop()
        elif self._next_fresh < self.num_blocks:
            block_id = self._next_fresh
            self._next_fresh += 1
        else:
            block_id, _ = self._idle.popitem(last=False)
            self._forget(block_id)
        self._ref_counts[block_id] = 1
        return block_id

    def acquire(self, block_id: int) -> None:
        """Reference a block that is used or idle once more."""
        if self._ref_counts[block_id] == 0:
            del self._idle[block_id]
        self._ref_counts[block_id] += 1

    def release(self, block_id: int) -> None:
        """Drop one reference. A block that nobody references any more is idle if it is in the index, else blank."""
        count = self._ref_counts[block_id] - 1
        assert count >= 0, f"block {block_id} released more often than acquired"
        self._ref_counts[block_id] = count
        if count == 0:
            if self._digests[block_id] is None:
                self._blank.append(block_id)
            else:
                self._idle[block_id] = None

    def publish(self, block_id: int, digest: bytes) -> None:
        """Enter a full and computed block into the index. The first block with a digest stays the one found."""
        if digest not in self._block_ids:
            self._block_ids[digest] = block_id
            self._digests[block_id] = digest

    def find(self, digest: bytes) -> int | None:
        """The block that holds what `digest` names, or None. `acquire` it before anything is allocated."""
        return self._block_ids.get(digest)

    def ref_count(self, block_id: int) -> int:
        """How many sequences reference the block."""
        return self._ref_counts[block_id]

    def _forget(self, block_id: int) -> None:
        """Take a block out of the index."""
        digest = self._digests[block_id]
        assert digest is not None, f"idle block {block_id} is not in the index"
        del self._block_ids[digest]
        self._digests[block_id] = None

    def check_integrity(self, references: Iterable[int]) -> None:
        """Assert that the books agree with `references`: the block ids of all tables, repeated as often as held."""
        counts = [0] * self.num_blocks
        for block_id in references:
            counts[block_id] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        used = [block_id for block_id, count in enumerate(counts) if count]
        fresh = range(self._next_fresh, self.num_blocks)
        everything = sorted([*used, *self._blank, *fresh, *self._idle])
        assert everything == list(range(self.num_blocks)), "a block is lost or in two states"
        indexed = {digest: block_id for block_id, digest in enumerate(self._digests) if digest is not None}
        assert indexed == self._block_ids, "the prefix index and the blocks disagree"
        assert all(self._digests[block_id] is not None for block_id in self._idle), "an idle block is not indexed"
        assert all(self._digests[block_id] is None for block_id in self._blank), "a blank block is indexed"
