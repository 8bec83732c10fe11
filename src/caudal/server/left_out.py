"""What stands in a tool's result in the place of what holds no text.

A user who sends an image is told that nobody sees it. A tool that returns one has no user to tell, and refusing the
result would refuse every further request of that conversation; so the model is told instead.
"""

from __future__ import annotations

_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "document": "document",
    "file": "document",
    "input_file": "document",
    "audio": "recording",
    "input_audio": "recording",
    "video_url": "video",
}


def left_out(part_type: str) -> str | None:
    """Return the text for a part of a tool's result, by its type in any API; None for a type that is not known."""
    kind = _KINDS.get(part_type)
    return None if kind is None else f"[{kind} left out: this model reads text]"
