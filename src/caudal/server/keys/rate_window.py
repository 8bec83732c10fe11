"""How much of something has been granted lately: in any minute, or since midnight. Pure: the clock is given."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

DAY_S = 86_400.0


@dataclass(slots=True)
class Slot:
    """What was granted within one step of a window.

    Attributes:
        expires_s: when it no longer counts.
        amount: of it all.
    """

    expires_s: float
    amount: int


@dataclass(slots=True)
class Grant:
    """An amount that counts; it can be settled to what was really used."""

    slot: Slot
    amount: int


class RateWindow(Protocol):
    """Counts amounts and forgets them in time."""

    def used(self) -> int:
        """Return what counts now."""

    def add(self, amount: int) -> Grant:
        """Count an amount from now on."""

    def settle(self, grant: Grant, amount: int) -> None:
        """Let a grant have been another amount from its beginning."""

    def wait_s(self, amount: int, limit: int) -> float:
        """Return after how many seconds at most so much more fits under a limit: 0 for now, infinity for never."""

    def reset_s(self) -> float:
        """Return after how many seconds nothing counts any more, if nothing is added."""


class SlidingWindow:
    """What was granted in the last `length_s` seconds, and up to one step more: in no such span is it exceeded.

    Args:
        length_s: of the window.
        clock: seconds that never go back.
        num_steps: grants within one step of `length_s / num_steps` are kept as one, which bounds the memory.
    """

    def __init__(self, length_s: float, clock: Callable[[], float], num_steps: int = 60) -> None:
        self._length_s = length_s
        self._clock = clock
        self._step_s = length_s / num_steps
        self._slots: deque[Slot] = deque()
        self._used = 0

    def used(self) -> int:
        """Return what counts now."""
        now = self._clock()
        while self._slots and self._slots[0].expires_s <= now:
            self._used -= self._slots.popleft().amount
        return self._used

    def add(self, amount: int) -> Grant:
        """Count an amount from now on."""
        self.used()
        step = math.floor(self._clock() / self._step_s) + 1
        expires_s = step * self._step_s + self._length_s
        if not self._slots or self._slots[-1].expires_s < expires_s:
            self._slots.append(Slot(expires_s, 0))
        slot = self._slots[-1]
        slot.amount += amount
        self._used += amount
        return Grant(slot, amount)

    def settle(self, grant: Grant, amount: int) -> None:
        """Let a grant have been another amount. One that no longer counts stays forgotten."""
        self.used()
        if self._slots and grant.slot.expires_s >= self._slots[0].expires_s:
            grant.slot.amount += amount - grant.amount
            self._used += amount - grant.amount
        grant.amount = amount

    def wait_s(self, amount: int, limit: int) -> float:
        """Return after how many seconds at most so much more fits."""
        if amount > limit:
            return math.inf
        used = self.used()
        if used + amount <= limit:
            return 0.0
        for slot in self._slots:
            used -= slot.amount
            if used + amount <= limit:
                return slot.expires_s - self._clock()
        return math.inf

    def reset_s(self) -> float:
        """Return after how many seconds the window is empty."""
        self.used()
        return max(0.0, self._slots[-1].expires_s - self._clock()) if self._slots else 0.0


def next_midnight(unix_s: float) -> float:
    """Return when the day of a time ends, UTC."""
    return (math.floor(unix_s / DAY_S) + 1) * DAY_S


class DayWindow:
    """What was granted since midnight, UTC.

    Args:
        clock: Unix time in seconds.
        used: what counts already, of a server that ran before, and on which day; nothing if it is not given.
    """

    def __init__(self, clock: Callable[[], float], used: Slot | None = None) -> None:
        self._clock = clock
        self._slot = used or Slot(next_midnight(clock()), 0)

    def used(self) -> int:
        """Return what counts now."""
        midnight = next_midnight(self._clock())
        if midnight != self._slot.expires_s:
            self._slot = Slot(midnight, 0)
        return self._slot.amount

    def add(self, amount: int) -> Grant:
        """Count an amount from now on."""
        self.used()
        self._slot.amount += amount
        return Grant(self._slot, amount)

    def settle(self, grant: Grant, amount: int) -> None:
        """Let a grant have been another amount; that of a day that is over changes nothing."""
        grant.slot.amount += amount - grant.amount
        grant.amount = amount

    def wait_s(self, amount: int, limit: int) -> float:
        """Return after how many seconds so much more fits."""
        if amount > limit:
            return math.inf
        return 0.0 if self.used() + amount <= limit else self._slot.expires_s - self._clock()

    def reset_s(self) -> float:
        """Return the seconds until midnight."""
        now = self._clock()
        return next_midnight(now) - now
