"""Keeps the text of control tokens inside messages from becoming control tokens.

Anyone can write "<|im_end|>" into a message. Before a template sees the messages, one character of every such
text is replaced by a stand-in, a private-use character found nowhere in them; after the template's control tokens
have been found, the characters are put back. The same is done to the beginning or end of a control token at the
end or beginning of a string, because a template may put two strings side by side.

In the assistant's own past messages the marks of reasoning stay as they are, because templates look for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_REASONING_MARKS = frozenset(
    ("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<|channel>", "<channel|>")
)
_STAND_INS = range(0xF0000, 0xFFFFE)  # a plane of private-use characters


@dataclass(frozen=True)
class HiddenText:
    """Messages, tools and template arguments as the template may see them.

    Attributes:
        hidden: stand-in -> the character that it replaces; empty if nothing had to be hidden.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]
    hidden: Mapping[str, str] = field(default_factory=dict)


class ControlText:
    """The texts of a vocabulary's control tokens, and how to find and hide them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts, key=len, reverse=True)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the text of any control token, the longest where several begin."""
        return re.compile("|".join(map(re.escape, self._texts)) if self._texts else r"(?!)")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:k] for text in self._texts for k in range(1, len(text)))

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(text[k:] for text in self._texts for k in range(1, len(text)))

    def hide(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> HiddenText:
        """Return the three with control text hidden: the same objects if they hold none."""
        texts = list(_strings([messages, tools, kwargs]))
        firsts = sorted({text[i] for text in texts for i in self._positions(text, frozenset())})
        if not firsts:
            return HiddenText(messages, tools, kwargs)
        used = set().union(*texts)
        free = (chr(code) for code in _STAND_INS if chr(code) not in used)
        stand_in = dict(zip(firsts, free, strict=False))

        def hide(text: str) -> str:
            return _replaced(text, self._positions(text, frozenset()), stand_in)

        def hide_in_answer(text: str) -> str:
            return _replaced(text, self._positions(text, _REASONING_MARKS), stand_in)

        safe = [_mapped(m, hide_in_answer if m.get("role") == "assistant" else hide) for m in messages]
        hidden = {new: old for old, new in stand_in.items()}
        return HiddenText(safe, _mapped(tools, hide), _mapped(kwargs, hide), hidden)

    def _positions(self, text: str, left_alone: frozenset[str]) -> list[int]:
        """Return the places of the characters to hide: one in every control text and in every part of one at an end."""
        places = set()
        match = self.pattern.search(text)
        while match is not None:
            if match[0] not in left_alone:
                places.add(match.start())
            match = self.pattern.search(text, match.start() + 1)
        longest = min(len(self._texts[0]) - 1 if self._texts else 0, len(text))
        for k in range(1, longest + 1):
            if text[-k:] in self._beginnings:
                places.update(_first_mark(text, len(text) - k, len(text)))
            if text[:k] in self._ends:
                places.update(_first_mark(text, 0, k))
        return sorted(places)


def _first_mark(text: str, begin: int, end: int) -> list[int]:
    """Return the place of the first character that is no letter or digit: words stay words, such as names of roles."""
    return next(([i] for i in range(begin, end) if not text[i].isalnum() and not text[i].isspace()), [])


def _replaced(text: str, places: list[int], stand_in: Mapping[str, str]) -> str:
    if not places:
        return text
    characters = list(text)
    for i in places:
        characters[i] = stand_in[text[i]]
    return "".join(characters)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return nested lists and dicts with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _strings(root: object) -> Iterator[str]:
    """Yield every string in nested lists and dicts, keys included."""
    rest = [root]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            rest += value.keys()
            rest += value.values()
        elif isinstance(value, list | tuple):
            rest += value
