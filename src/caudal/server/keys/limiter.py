"""Whether a key may begin a request now, and how many tokens it may use. Pure: clocks are given; for one thread.

Everything is reserved before any work and in one go, so requests that come together cannot exceed a limit together.
Tokens are reserved for the longest answer that was asked for, and settled when it has ended.

An answer that may be as long as the context allows, or longer than the key's limit, is "open-ended". It may take half
of what the key has left, and at least OPEN_ENDED_TOKENS; so one such request neither waits for an empty window nor
keeps all others of its key out. It ends as any answer at its `max_tokens` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.server.keys.rate_window import DayWindow, SlidingWindow, Slot, next_midnight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from caudal.server.keys.key import Key
    from caudal.server.keys.rate_window import Grant, RateWindow

OPEN_ENDED_TOKENS = 256
MINUTE_S = 60.0
_RETRY_PARALLEL_S = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not go on.

    Attributes:
        limit_name: a field of Key.
        limit: its value.
        used: how much of it counts now.
        asked: how much more was asked for.
        retry_after_s: when it will fit; infinity for never.
    """

    limit_name: str
    limit: int
    used: int
    asked: int
    retry_after_s: float


@dataclass(slots=True)
class TokenGrant:
    """Tokens reserved for one answer.

    Attributes:
        max_tokens: how long the answer may be at most.
    """

    max_tokens: int
    grants: list[tuple[RateWindow, Grant]]

    def settle(self, num_tokens: int) -> None:
        """Let it have been so many tokens, of prompt and answer."""
        for window, grant in self.grants:
            window.settle(grant, num_tokens)


@dataclass(frozen=True, slots=True)
class DayUse:
    """What counts already on one day, of a server that ran before.

    Attributes:
        unix_s: a time of that day.
        by_key: requests and tokens, for key ids.
    """

    unix_s: float
    by_key: Mapping[str, tuple[int, int]]

    def of(self, key_id: str) -> tuple[Slot, Slot]:
        """Return a key's requests and tokens, which count until that day ends."""
        expires_s = next_midnight(self.unix_s)
        num_requests, num_tokens = self.by_key.get(key_id, (0, 0))
        return Slot(expires_s, num_requests), Slot(expires_s, num_tokens)


class _Counts:
    """What counts for one key."""

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float], requests: Slot, tokens: Slot) -> None:
        self.num_parallel = 0
        self.windows: dict[str, RateWindow] = {
            "requests_per_minute": SlidingWindow(MINUTE_S, monotonic),
            "requests_per_day": DayWindow(wall, requests),
            "tokens_per_minute": SlidingWindow(MINUTE_S, monotonic),
            "tokens_per_day": DayWindow(wall, tokens),
        }


REQUESTS = ("requests_per_minute", "requests_per_day")
TOKENS = ("tokens_per_minute", "tokens_per_day")


class Limiter:
    """The limits of all keys.

    Args:
        monotonic: seconds that never go back.
        wall: Unix time in seconds.
        before: what counts already.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        before: DayUse | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._before = before or DayUse(wall(), {})
        self._counts: dict[str, _Counts] = {}

    def begin(self, key: Key) -> Refusal | None:
        """Count a request that begins now, or return why it may not. What has begun must be ended with `end`."""
        counts = self._of(key)
        if key.max_parallel is not None and counts.num_parallel >= key.max_parallel:
            return Refusal("max_parallel", key.max_parallel, counts.num_parallel, 1, _RETRY_PARALLEL_S)
        refusal = self._first_refusal(key, dict.fromkeys((*REQUESTS, *TOKENS), 1))
        if refusal is not None:
            return refusal
        counts.num_parallel += 1
        for name in REQUESTS:
            counts.windows[name].add(1)
        return None

    def end(self, key: Key) -> None:
        """Note that a request has ended."""
        self._of(key).num_parallel -= 1

    def reserve(self, key: Key, num_prompt: int, max_tokens: int, *, least: int, is_open: bool) -> TokenGrant | Refusal:
        """Reserve the tokens of an answer.

        Args:
            key: whose.
            num_prompt: tokens of the prompt.
            max_tokens: the longest answer that was asked for; 0 for no answer.
            least: an answer of fewer tokens makes no sense.
            is_open: that is as long as the context allows.
        """
        counts = self._of(key)
        limits = [limit for name in TOKENS if (limit := getattr(key, name)) is not None]
        if limits and (is_open or num_prompt + max_tokens > min(limits)):
            enough = min(max_tokens, max(least, min(OPEN_ENDED_TOKENS, min(limits) - num_prompt)))
            left = min(getattr(key, name) - counts.windows[name].used() for name in TOKENS if getattr(key, name))
            max_tokens = min(max_tokens, max(enough, (left - num_prompt) // 2))
        asked = num_prompt + max_tokens
        refusal = self._first_refusal(key, dict.fromkeys(TOKENS, asked))
        if refusal is not None:
            return refusal
        return TokenGrant(max_tokens, [(counts.windows[name], counts.windows[name].add(asked)) for name in TOKENS])

    def headers(self, key: Key) -> dict[str, str]:
        """Return OpenAI's rate limit headers: of the limits per minute, or those per day where there are no others."""
        headers: dict[str, str] = {}
        for what, names in (("requests", REQUESTS), ("tokens", TOKENS)):
            name = next((name for name in names if getattr(key, name) is not None), None)
            if name is None:
                continue
            window, limit = self._of(key).windows[name], getattr(key, name)
            headers[f"x-ratelimit-limit-{what}"] = str(limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(0, limit - window.used()))
            headers[f"x-ratelimit-reset-{what}"] = duration(window.reset_s() if window.used() else 0.0)
        return headers

    def used(self, key: Key) -> dict[str, int]:
        """Return what counts now, by the names of the limits."""
        counts = self._of(key)
        used = {name: window.used() for name, window in counts.windows.items()}
        return {**used, "max_parallel": counts.num_parallel}

    def _first_refusal(self, key: Key, asked: dict[str, int]) -> Refusal | None:
        """Return the refusal that lasts longest, if there is one."""
        windows = self._of(key).windows
        worst = None
        for name, amount in asked.items():
            limit = getattr(key, name)
            if limit is None:
                continue
            wait_s = windows[name].wait_s(amount, limit)
            if wait_s > 0 and (worst is None or wait_s > worst.retry_after_s):
                worst = Refusal(name, limit, windows[name].used(), amount, wait_s)
        return worst

    def _of(self, key: Key) -> _Counts:
        counts = self._counts.get(key.id)
        if counts is None:
            counts = self._counts[key.id] = _Counts(self._monotonic, self._wall, *self._before.of(key.id))
        return counts


def duration(seconds: float) -> str:
    """Return a duration as OpenAI's headers have it: "6m0s", "12s"."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return "".join([f"{hours}h" * bool(hours), f"{minutes}m" * bool(hours or minutes), f"{rest}s"])
