"""Times as Ollama's API writes them: RFC 3339, durations in nanoseconds, keep_alive as Go writes durations."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

from caudal.errors import InvalidParameter

NEVER = "2200-01-01T00:00:00Z"
"""Stands for the end of what does not end: clients expect a time."""

_SECONDS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_TERM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


def now() -> str:
    """Return the time."""
    return timestamp(time.time_ns())


def timestamp(unix_ns: int) -> str:
    """Return a Unix time."""
    seconds, rest = divmod(unix_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def nanoseconds(seconds: float) -> int:
    """Return a duration."""
    return max(0, round(seconds * 1e9))


def keep_alive_s(value: float | str | None) -> float | None:
    """Return how long a model is to stay loaded after its last request: seconds; infinity for ever; None by default.

    Args:
        value: seconds, or a duration such as "5m" or "1h30m"; a negative one is for ever.

    Raises:
        InvalidParameter: neither.
    """
    if value is None or value == "":
        return None
    seconds = float(value) if not isinstance(value, str) else _seconds(value.strip())
    if seconds is None or math.isnan(seconds):
        message = f"keep_alive is {value!r}; expected seconds, or a duration such as '5m' or '-1m'"
        raise InvalidParameter(message, parameter="keep_alive")
    return math.inf if seconds < 0 else seconds


def _seconds(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    total = sum(float(number) * _SECONDS[unit] for number, unit in _TERM.findall(text))
    return -total if text[0] == "-" else total
