"""The `limit` of a list that is told page by page."""

from __future__ import annotations

from caudal.errors import InvalidParameter


def read_limit(given: str | None, *, default: int, most: int) -> int:
    """Return how many entries a page has. Raises InvalidParameter for what is no number from 1 to `most`."""
    if given is None:
        return default
    if not given.isdecimal() or not 1 <= int(given[:9]) <= most:
        message = f"limit is {given[:32]!r}; expected a number from 1 to {most}"
        raise InvalidParameter(message, parameter="limit")
    return int(given)
