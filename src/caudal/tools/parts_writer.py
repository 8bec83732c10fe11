"""Collects an answer's parts as they become certain, and decides which white space belongs to them."""

from __future__ import annotations

from caudal.tools.parts import CallArguments, CallBegin, Part, ReasoningPart, TextPart
from caudal.tools.tape import SPACE


class PartsWriter:
    """Text, reasoning and calls in, parts out.

    White space around reasoning and calls belongs to nobody: text before a call loses its end, text after reasoning
    or a call its beginning. Only where text stands on both sides of a call, the space before the call is kept
    between them. Reasoning loses white space at both its ends. All other text stays as it is.
    """

    def __init__(self) -> None:
        self.has_text = False
        self.num_calls = 0
        self._runs: list[tuple[type, int, list[str]]] = []  # kind, index of the call, pieces of text
        self._gap: list[str] = []  # white space that is text only if more text follows
        self._grows = True  # the gap still takes white space; otherwise it is dropped until the next text
        self._thought: list[str] | None = None  # white space in reasoning, None before its first word
        self.lacks_arguments = False  # the last call's arguments have not begun

    def take(self) -> list[Part]:
        """Return the parts since the last time, neighbours of one kind joined."""
        runs, self._runs = self._runs, []
        return [
            kind("".join(pieces)) if kind in (TextPart, ReasoningPart) else kind(index, "".join(pieces))
            for kind, index, pieces in runs
        ]

    def _add(self, kind: type, *pieces: str) -> None:
        index = self.num_calls - 1
        if not self._runs or self._runs[-1][0] is not kind or self._runs[-1][1] != index:
            self._runs.append((kind, index, []))
        self._runs[-1][2].extend(pieces)

    def text(self, text: str) -> None:
        """Add text for the user."""
        if not self._grows:
            text = text.lstrip(SPACE)
            self._grows = bool(text)
        body = text.rstrip(SPACE)
        if body:
            self._add(TextPart, *self._gap, body)
            self._gap = []
            self.has_text = True
        if len(body) < len(text):
            self._gap.append(text[len(body) :])

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        if self._thought is None:
            text = text.lstrip(SPACE)
        body = text.rstrip(SPACE)
        if body:
            self._add(ReasoningPart, *(self._thought or ()), body)
            self._thought = []
        if self._thought is not None and len(body) < len(text):
            self._thought.append(text[len(body) :])

    def end_text(self) -> None:
        """Say that something else than text comes: what follows is not one text with what was before."""
        self._grows = False
        if not self.has_text:
            self._gap = []

    def end_reasoning(self) -> None:
        """Say that reasoning ended."""
        self._thought = None

    def begin(self, name: str) -> None:
        """Begin a call."""
        self.end_text()
        self.num_calls += 1
        self.lacks_arguments = True
        self._add(CallBegin, name)

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if text:
            self._add(CallArguments, text)
            self.lacks_arguments = False

    def finish(self) -> None:
        """Say that the answer is over."""
        if self._grows and self._gap:
            self._add(TextPart, *self._gap)
            self._gap = []
