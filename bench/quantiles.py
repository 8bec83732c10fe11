"""Quantiles of durations, some of which were still going on when we stopped looking."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Duration(NamedTuple):
    """Seconds that something took, or has taken so far."""

    seconds: float
    is_over: bool = True


class Quantile(NamedTuple):
    """A quantile; `at_least` when too many durations were not over to say more."""

    seconds: float
    at_least: bool


def quantile(durations: Iterable[Duration], q: float) -> Quantile | None:
    """Return the smallest time by which a part `q` of the durations is over; None without durations.

    One that is not over counts until the time that it is known to have taken: leaving it out would flatter a server
    that is too slow to answer, and calling it endless would wrong one that was asked a moment before the end.

    Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958.
    """
    ordered = sorted(durations, key=lambda duration: (duration.seconds, not duration.is_over))
    if not ordered:
        return None
    surviving = 1.0
    for index, duration in enumerate(ordered):
        if duration.is_over:
            surviving *= 1 - 1 / (len(ordered) - index)
            if 1 - surviving >= q - 1e-9:
                return Quantile(duration.seconds, at_least=False)
    return Quantile(ordered[-1].seconds, at_least=True)
