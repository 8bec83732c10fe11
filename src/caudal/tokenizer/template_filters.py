"""Filters and functions that chat templates may use, each safe on hostile arguments.

Source: the environment in which Hugging Face publishes chat templates: jinja2 with `tojson` without HTML escapes,
`raise_exception`, `strftime_now`; `from_json` as some templates of llama.cpp use it.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.filters import FILTERS
from jinja2.utils import Namespace

from caudal.tokenizer.template_limits import MAX_VALUE_SIZE, NODE_SIZE, Meter, TemplateLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# jinja2's own filters that can build no more than a few times what they are given.
_PLAIN_NAMES = (
    "abs attr capitalize count d default dictsort e escape first float forceescape groupby int items last length "
    "list lower map max min reject rejectattr reverse safe select selectattr sort string title trim unique upper "
    "urlencode"
)
_WIDTH = re.compile(r"%[^%a-zA-Z]*(?:\*|\d{4})|\{[^{}]*:[^{}]*(?:\{|\d{4})")
_MAX_FIELD = 1000  # characters that a width of three digits can add


class QuietNamespace(Namespace):
    """A namespace that prints as a word: what it holds may be too much."""

    def __repr__(self) -> str:
        return "<Namespace>"


def raise_exception(message: object) -> None:
    """Let a template refuse the messages."""
    raise jinja2.TemplateError(str(message))


def strftime_now(pattern: str) -> str:
    """Return the local time as `time.strftime` writes it."""
    if len(pattern) > 256 or re.search(r"%[^a-zA-Z%]*\d", pattern):
        message = "it asked for a time in a format with widths, or a very long one"
        raise TemplateLimit(message)
    return time.strftime(pattern)


def check_format(meter: Meter, pattern: str, values: object) -> None:
    """Stop a format whose result may be far longer than its values: widths of four digits or from a variable."""
    if _WIDTH.search(pattern):
        message = "it formatted a value with a width of more than three digits or one from a variable"
        raise TemplateLimit(message)
    num_fields = pattern.count("%") + pattern.count("{")
    meter.build(len(pattern) + num_fields * (_MAX_FIELD + meter.size(values)))


def check_replace(meter: Meter, text: str, old: str, new: str) -> None:
    """Account for text.replace(old, new)."""
    meter.build(len(text) + text.count(old) * len(new))


def metered_filters() -> dict[str, Callable[..., Any]]:
    """Return name -> filter of those that take the rendering's Meter as their first argument."""
    return {
        "format": _format,
        "from_json": _from_json,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "round": _round,
        "sum": _sum,
        "tojson": _to_json,
    }


def plain_filters() -> dict[str, Callable[..., Any]]:
    """Return jinja2's own filters that are allowed."""
    return {name: FILTERS[name] for name in _PLAIN_NAMES.split()}


def _format(meter: Meter, pattern: object, *args: Any, **kwargs: Any) -> str:
    text = str(pattern)
    check_format(meter, text, [args, kwargs])
    return text % (kwargs or args)


def _from_json(meter: Meter, text: str) -> Any:
    meter.build(len(text) * NODE_SIZE)
    return json.loads(text)


def _indent(meter: Meter, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:  # noqa: FBT001, FBT002 (as jinja2 has it)
    filler = " " * min(width, _MAX_FIELD) if isinstance(width, int) else width
    check_replace(meter, text, "\n", "\n" + filler)
    lines = [filler + line if line or blank else line for line in text.split("\n")]
    if not first:
        lines[0] = lines[0].removeprefix(filler)
    return "\n".join(lines)


def _join(meter: Meter, items: Iterable[Any], separator: object = "", attribute: str | None = None) -> str:
    texts = []
    for item in items:
        value = item if attribute is None else item[attribute]
        meter.build(meter.size(value))
        texts.append(str(value))
    text = str(separator)
    meter.build(sum(map(len, texts)) + len(text) * len(texts))
    return text.join(texts)


def _replace(meter: Meter, text: object, old: object, new: object, count: int | None = None) -> str:
    whole = str(text)
    check_replace(meter, whole, str(old), str(new))
    return whole.replace(str(old), str(new), -1 if count is None else count)


def _round(_: Meter, value: float, precision: int = 0, method: str = "common") -> Any:
    return FILTERS["round"](value, max(-20, min(precision, 20)), method)


def _sum(meter: Meter, items: Iterable[Any], start: float = 0) -> float:
    total = start
    for item in items:
        meter.tick()
        if not isinstance(item, int | float) or not isinstance(start, int | float):
            message = f"sum: expected numbers, got {type(item).__name__}"
            raise TypeError(message)
        total += item
    return total


def _to_json(
    meter: Meter,
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | list[str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    size = meter.size(value)
    meter.build(size)
    if separators is not None and sum(map(len, separators)) > 8:
        message = "tojson: separators of more than 8 characters"
        raise TemplateLimit(message)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else max(0, min(int(indent), 16)),
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=sort_keys,
    )
    if indent is None:
        return encoder.encode(value)
    pieces, total = [], 0
    for piece in encoder.iterencode(value):
        total += len(piece)
        if total > MAX_VALUE_SIZE:
            meter.build(total)
        pieces.append(piece)
    return "".join(pieces)
