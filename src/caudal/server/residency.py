"""Which models stay in memory: how long an idle one is kept, and who leaves when another needs room.

Pure decisions. Times are seconds of one clock that the caller reads; nothing here waits or touches a process.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

FOREVER = math.inf
DEFAULT_KEEP_ALIVE_S = 300.0
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PLAIN = re.compile(rf"[+-]?{_NUMBER}")
_PARTS = re.compile(rf"([+-]?)((?:{_NUMBER}(?:{'|'.join(_UNITS_S)}))+)")
_PART = re.compile(rf"({_NUMBER})({'|'.join(_UNITS_S)})")
_SHOWN_CHARS = 40


@dataclass(frozen=True, kw_only=True)
class Residency:
    """How long models stay, and how many.

    Attributes:
        keep_alive_s: an idle model is kept for so long.
        first_keep_alive_s: the same for the first one, which is loaded at the start.
        max_loaded: most models in memory; None is as many as fit.
        load_timeout_s: a request waits for its model for so long, and is then asked to try again.
        patience_s: after so long without room, the longest loaded of the models in use gets no new requests until it
            has made some.
        max_waiting: most requests that wait for models; the next is refused with 429.
    """

    keep_alive_s: float = DEFAULT_KEEP_ALIVE_S
    first_keep_alive_s: float = FOREVER
    max_loaded: int | None = None
    load_timeout_s: float = 300.0
    max_waiting: int = 1024
    patience_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model in memory.

    Attributes:
        name: its own.
        held_bytes: what becomes free when it leaves.
        in_use: somebody works with it or waits for it; it may not leave.
        last_used_s: when the last of them was done.
        keep_alive_s: how long it is kept after that; FOREVER, or 0 for not at all.
    """

    name: str
    held_bytes: int
    in_use: bool
    last_used_s: float
    keep_alive_s: float

    @property
    def expires_s(self) -> float:
        """When it leaves if nobody asks for it; FOREVER while it is in use or kept for ever."""
        return FOREVER if self.in_use else self.last_used_s + self.keep_alive_s


def expired(residents: Sequence[Resident], now_s: float) -> list[str]:
    """Return the models whose time is over."""
    return [each.name for each in residents if each.expires_s <= now_s]


def next_expiry_s(residents: Sequence[Resident]) -> float:
    """Return when the first model's time is over; FOREVER if no model's is."""
    return min((each.expires_s for each in residents), default=FOREVER)


def who_leaves(
    residents: Sequence[Resident], needed_bytes: int, free_bytes: int, max_loaded: int | None
) -> tuple[str, ...] | None:
    """Return the models to unload so that one more has room; None if those in use leave it none.

    The least recently used idle models leave, and no more of them than must. Estimates of memory may be wrong: with
    nobody else in memory a model is always tried, and the engine says if it does not fit.

    Args:
        residents: the models in memory.
        needed_bytes: what the new one takes.
        free_bytes: what is free now.
        max_loaded: most models in memory, the new one included; None is no limit.
    """

    def is_enough(leaving: Sequence[Resident]) -> bool:
        num_staying = len(residents) - len(leaving)
        if num_staying == 0:
            return True
        room = free_bytes + sum(each.held_bytes for each in leaving)
        return room >= needed_bytes and (max_loaded is None or num_staying < max_loaded)

    idle = sorted((each for each in residents if not each.in_use), key=lambda each: each.last_used_s)
    leaving: list[Resident] = []
    for each in idle:
        if is_enough(leaving):
            break
        leaving.append(each)
    if not is_enough(leaving):
        return None
    for each in reversed(list(leaving)):  # the last of them may have made room enough alone
        without = [other for other in leaving if other is not each]
        if is_enough(without):
            leaving = without
    return tuple(each.name for each in leaving)


def read_keep_alive(given: str | float, parameter: str = "keep_alive") -> float:
    """Return seconds from a number of them or a duration such as "5m", "1h30m" or "-1"; below 0 is FOREVER.

    Source: Ollama's API documentation, `keep_alive`; Go's time.ParseDuration.

    Raises:
        InvalidParameter: it is neither.
    """
    seconds = _seconds(given)
    if seconds is None or math.isnan(seconds):
        shown = given[:_SHOWN_CHARS] if isinstance(given, str) else given
        message = (
            f"{parameter} is {shown!r}; expected seconds, or a duration such as '5m' or '1h30m'; -1 keeps for ever"
        )
        raise InvalidParameter(message, parameter=parameter)
    return FOREVER if seconds < 0 else seconds


def _seconds(given: str | float) -> float | None:
    if not isinstance(given, str):
        return float(given)
    text = given.strip().lower()
    if _PLAIN.fullmatch(text):
        return float(text)
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    sign = -1.0 if match[1] == "-" else 1.0
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(match[2]))
