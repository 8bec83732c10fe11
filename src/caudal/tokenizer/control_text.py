"""Keeps the text of control tokens inside messages from becoming control tokens.

Anyone can write "<|im_end|>" into a message. Before a template sees the messages, the first character of every
such text is replaced by a stand-in, a private-use character found nowhere in them; after the template's control
tokens have been found, the characters are put back.

In the assistant's own past messages the marks of reasoning stay as they are, because templates look for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

_REASONING_MARKS = frozenset(
    ("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<|channel>", "<channel|>")
)
_FIRST_STAND_IN, _END_STAND_IN = 0xF0000, 0xFFFFE  # a plane of private-use characters


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


def hide_control_text(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
    *,
    pattern: re.Pattern[str],
) -> HiddenText:
    """Return the three with control text hidden: the same objects if they hold none."""
    texts = list(_strings([messages, tools, kwargs]))
    firsts = sorted({match[0][0] for text in texts for match in pattern.finditer(text)})
    if not firsts:
        return HiddenText(messages, tools, kwargs)
    used = set().union(*texts)
    free = (chr(code) for code in range(_FIRST_STAND_IN, _END_STAND_IN) if chr(code) not in used)
    stand_in = dict(zip(firsts, free, strict=False))

    def hide(match: re.Match[str]) -> str:
        return stand_in[match[0][0]] + match[0][1:]

    def hide_in_answer(match: re.Match[str]) -> str:
        return match[0] if match[0] in _REASONING_MARKS else hide(match)

    def change(value: Any, replace: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(replace, value)
        if isinstance(value, Mapping):
            return {change(key, replace): change(item, replace) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [change(item, replace) for item in value]
        return value

    safe = [change(m, hide_in_answer if m.get("role") == "assistant" else hide) for m in messages]
    return HiddenText(safe, change(tools, hide), change(kwargs, hide), {new: old for old, new in stand_in.items()})


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
