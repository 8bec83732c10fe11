"""Penalties for repetition as llama.cpp's relatives write them, in terms of SamplingParams."""

from __future__ import annotations

from typing import Any

from caudal.errors import UnsupportedParameter

_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def penalties_of(
    *, repeat: float | None, presence: float | None, frequency: float | None, last_n: int | None
) -> dict[str, Any]:
    """Return the penalties as SamplingParams has them, moved into their ranges; {} if there are none.

    Args:
        repeat: repetition_penalty; None for none.
        presence: presence_penalty; the same.
        frequency: frequency_penalty; the same.
        last_n: how many tokens back they look: 0 turns them off, -1 is all, None the same.

    Raises:
        UnsupportedParameter: there are penalties, and last_n wants them to look at the last tokens alone.
    """
    given = {
        "repetition_penalty": within(repeat, 1.0, 1e-3, 1e3),
        "presence_penalty": within(presence, 0.0, -100.0, 100.0),
        "frequency_penalty": within(frequency, 0.0, -100.0, 100.0),
    }
    if given == _NEUTRAL or last_n == 0:
        return {}
    if last_n is not None and last_n > 0:
        message = (
            f"repeat_last_n is {last_n} beside a penalty; penalties here look at all tokens: send -1, or leave "
            "repeat_last_n out"
        )
        raise UnsupportedParameter(message, parameter="repeat_last_n")
    return given


def within(value: float | None, default: float, low: float, high: float) -> float:
    """Return a value moved into a range, or the default for None."""
    return default if value is None else min(max(value, low), high)
