"""PrefillPace: how much prompt a step may compute while others generate, so that they keep their rhythm.

There is no clock here: work is counted. A token costs 1, and its attention as much again for every
`context_per_token` tokens before it. For each prompt at hand, a step may spend `per_decode` times the work of its
decoding rows, but always MIN_WORK, for a step has a cost of its own. So one prompt, however long, makes a step take a
bounded multiple of the time of one without it; the more people wait for a first token, the more of the step is theirs;
and where nobody generates, prompts get all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.core.step_plan import PlannedRow

MIN_WORK = 32


@dataclass(frozen=True, slots=True)
class PrefillPace:
    """A pace.

    Attributes:
        per_decode: work on a prompt for each unit of work on decoding rows; 0 is no limit.
        context_per_token: tokens of context whose attention costs as much as the rest of a token; 0 is attention for
            nothing.
    """

    per_decode: float
    context_per_token: int

    def work_beside(self, rows: Sequence[PlannedRow], num_prompts: int) -> int | None:
        """Return what a step with these decoding rows may spend on prompts; None is all that it can."""
        if not rows or not self.per_decode:
            return None
        work = sum(row.num_tokens for row in rows)
        if self.context_per_token:
            work += sum(row.num_tokens * row.start for row in rows) // self.context_per_token
        return num_prompts * max(MIN_WORK, int(self.per_decode * work))

    def tokens(self, work: int, start: int) -> int:
        """Return how many tokens from position `start` on this much work pays for: at least one, if it is any."""
        if not work or not self.context_per_token:
            return work
        return max(1, work * self.context_per_token // (self.context_per_token + start))
