"""A call's arguments as an object, for APIs that do not pass on the model's text."""

from __future__ import annotations

from typing import Any

import msgspec

INVALID_JSON = "INVALID_JSON"


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments; the text itself, under INVALID_JSON, if the answer ended before they were whole.

    A tool must not run without its arguments as if none had been meant.
    """
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: text}
