"""What one rendering of a chat template may use: time, and the size of what it builds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_VALUE_SIZE = 16 << 20  # characters of one value, containers with all that they hold
MAX_TOTAL_SIZE = 512 << 20  # characters of all values built by one rendering
MAX_INT_BITS = 4096
NODE_SIZE = 16  # what a number or a place in a list counts


class TemplateLimit(Exception):
    """A rendering asked for more than it may use."""


@dataclass(frozen=True)
class TemplateLimits:
    """Bounds of one rendering.

    Attributes:
        time_s: wall-clock time.
        output_chars: length of the rendered text.
    """

    time_s: float = 5.0
    output_chars: int = 8 << 20


class Meter:
    """Counts what one rendering uses, and stops it with TemplateLimit.

    Every loop turn, call, filter and output passes here, and every value that can grow is measured before it is
    built, so no single step between two looks at the clock is long.
    """

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.time_s
        self._built = 0
        # id -> (the value itself, so that its id stays its own, and its size); of what was passed in, and of the rest.
        self._given: dict[int, tuple[object, int]] = {}
        self._sizes: dict[int, tuple[object, int]] = {}

    def give(self, value: object) -> None:
        """Take note of a value that is passed to the template, which may not change it."""
        self.size(value)
        self._given.update(self._sizes)
        self._sizes.clear()

    def change(self, values: list[Any], *added: Any) -> None:
        """Account for a change of a list that the template made. Raises TypeError if it was passed to the template."""
        if id(values) in self._given:
            message = "a template may not change its messages and other arguments"
            raise TypeError(message)
        self.build(sum(map(self.size, added)))
        self._sizes.clear()

    def tick(self) -> None:
        """Look at the clock."""
        if time.monotonic() > self._deadline:
            message = f"it ran longer than {self._limits.time_s:g} s"
            raise TemplateLimit(message)

    def build(self, size: int) -> None:
        """Account for a value of this size that is about to be built."""
        self.tick()
        if size > MAX_VALUE_SIZE:
            message = f"it built a value of more than {MAX_VALUE_SIZE >> 20} Mi characters"
            raise TemplateLimit(message)
        self._built += size
        if self._built > MAX_TOTAL_SIZE:
            message = f"it built more than {MAX_TOTAL_SIZE >> 20} Mi characters in total"
            raise TemplateLimit(message)

    def output(self, num_chars: int) -> None:
        """Check the length of the text rendered so far."""
        if num_chars > self._limits.output_chars:
            message = f"its text is longer than {self._limits.output_chars} characters"
            raise TemplateLimit(message)

    def size(self, value: Any) -> int:
        """Return an estimate of the characters needed to print a value, shared parts counted every time."""
        if isinstance(value, str):
            return len(value) + NODE_SIZE
        if not isinstance(value, list | tuple | Mapping):
            return NODE_SIZE
        known = self._given.get(id(value)) or self._sizes.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, Mapping):
            total = sum(self.size(key) + self.size(item) for key, item in value.items())
        else:
            total = sum(map(self.size, value))
        self._sizes[id(value)] = (value, total + NODE_SIZE)
        return total + NODE_SIZE
