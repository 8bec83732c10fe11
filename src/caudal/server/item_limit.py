"""How many messages, items or tools a request may have: they are worked through where streams wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ITEMS = 20_000
"""Messages or items, and the parts of their contents, together. No context holds so many turns."""

_LISTS = ("messages", "input", "system", "tools", "functions")
_PARTS = ("content", "output", "summary", "images", "tool_calls")


def check_items(body: object) -> None:
    """Raise InvalidParameter if a decoded request has more messages, items or tools than MAX_ITEMS; names the field."""
    for name in _LISTS:
        items = getattr(body, name, None)
        if isinstance(items, list) and items and not isinstance(items[0], str | int | list):  # texts, or token ids
            check_num_items(_num_items(items), name)


def check_num_items(number: int, parameter: str) -> None:
    """Raise InvalidParameter if there are more than MAX_ITEMS."""
    if number > MAX_ITEMS:
        message = f"{parameter} has {number} or more items, parts counted; expected at most {MAX_ITEMS}"
        raise InvalidParameter(message, parameter=parameter)


def _num_items(items: Sequence[object]) -> int:
    """Return how many there are with their parts, and the parts of those; it stops counting beyond the limit."""
    number = 0
    waiting: list[Sequence[object]] = [items]
    while waiting and number <= MAX_ITEMS:
        level = waiting.pop()
        number += len(level)
        if len(level) > MAX_ITEMS:
            break
        for item in level:
            lists = [getattr(item, name, None) for name in _PARTS]
            waiting += [parts for parts in lists if isinstance(parts, list) and parts]
    return number
