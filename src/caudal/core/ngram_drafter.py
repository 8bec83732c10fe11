"""Prompt lookup: an answer that repeats what came before is guessed by looking where its last tokens stood already.

Source: Saxena, "Prompt Lookup Decoding", 2023; Yang et al., "Inference with Reference" (arXiv:2304.04487). The
occurrences of a pair of tokens are chained from the latest back, as in LZ77 compressors (RFC 1951, section 4).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_MATCH = 2
LONG_MATCH = 8
MAX_CANDIDATES = 16


class NgramDrafter:
    """Knows the earlier occurrences of every pair of tokens of one sequence.

    It catches up when it is asked: a dictionary entry and 4 bytes for each new token.
    """

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._earlier = array("i", [-1, -1])

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """The tokens that followed the longest earlier occurrence of the last ones; of equally long ones, the latest.

        What runs into the end goes on as if it repeated itself.

        Args:
            token_ids: those of the last call, and perhaps more.
            max_tokens: how many to return, unless there is no such occurrence.
        """
        self._catch_up(token_ids)
        start = self._find(token_ids)
        if start < 0:
            return ()
        period = len(token_ids) - start
        return tuple([token_ids[start + offset % period] for offset in range(max_tokens)])

    def _find(self, token_ids: Sequence[int]) -> int:
        """The position behind the best of the latest MAX_CANDIDATES occurrences, or -1."""
        if len(token_ids) < MIN_MATCH:
            return -1
        start = self._latest.get(token_ids[-2] << 32 | token_ids[-1], -1)
        best, best_length = -1, 0
        for _ in range(MAX_CANDIDATES):
            if start < 0 or best_length == LONG_MATCH:
                break
            length = _common_length(token_ids, start)
            if length > best_length:
                best, best_length = start, length
            start = self._earlier[start]
        return best

    def _catch_up(self, token_ids: Sequence[int]) -> None:
        """Enter each pair that has a token behind it."""
        latest, earlier = self._latest, self._earlier
        first = len(earlier)
        if first >= len(token_ids):
            return
        before = token_ids[first - 2]
        for start, token_id in enumerate(token_ids[first - 1 : -1], first):
            pair = before << 32 | token_id
            earlier.append(latest.get(pair, -1))
            latest[pair] = start
            before = token_id


def _common_length(token_ids: Sequence[int], start: int) -> int:
    """How many tokens before `start` equal the last ones, LONG_MATCH at most."""
    end = len(token_ids)
    limit = min(LONG_MATCH, start)
    length = MIN_MATCH
    while length < limit and token_ids[start - 1 - length] == token_ids[end - 1 - length]:
        length += 1
    return length
