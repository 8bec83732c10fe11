"""Aging: the less urgent wait for the more urgent, but not for ever.

Whenever a sequence starts, everybody less urgent who waits has been passed. After `MAX_PASSES` times the one that would
be next of its priority becomes as urgent as the one that passed it last, and takes its turn among those.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.core.request import Sequence
    from caudal.core.waiting_queue import WaitingQueue

MAX_PASSES = 16


class Aging:
    """Counts, for each priority that waits, how often it was passed."""

    def __init__(self) -> None:
        self._passes: dict[int, int] = {}

    def note_start(self, started: Sequence, waiting: WaitingQueue) -> None:
        """A sequence starts, which is no longer in the queue. Perhaps another one becomes more urgent."""
        priority = started.request.priority
        self._passes.pop(priority, None)
        passed = [other for other in waiting.priorities if other > priority]
        if not passed and not self._passes:
            return  # nearly always: one priority
        present = {other: self._passes.get(other, 0) for other in waiting.priorities if other in self._passes}
        self._passes = present | {other: present.get(other, 0) + 1 for other in passed}
        for other in passed:
            if self._passes[other] >= MAX_PASSES:
                del self._passes[other]
                seq = next(seq for seq in waiting if seq.request.priority == other)
                waiting.remove(seq)
                seq.request = replace(seq.request, priority=priority)
                waiting.add(seq)
