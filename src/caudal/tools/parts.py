"""What an answer consists of: text, reasoning, and calls of tools; in the parts in which it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """The model's thinking aloud before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool begins. Its index counts the answer's calls from 0; its arguments follow as CallArguments."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of a call's arguments, as JSON text.

    All parts of a call, joined, are one JSON object, without white space between its parts; the beginning of one if
    the answer was cut off inside of the call.
    """

    index: int
    text: str


Part = TextPart | ReasoningPart | CallBegin | CallArguments


class AnswerParser(Protocol):
    """Reads one answer. However the text is cut into pushes, the joined parts are the same."""

    def push(self, text: str) -> list[Part]:
        """Return what more text makes certain; what may still turn out to be a marker is held back."""

    def finish(self) -> list[Part]:
        """Return the rest.

        What began like a call but got no CallBegin has become text. A call that stopped being one after its CallBegin
        has arguments that were made whole, and what followed has become text. A call at which the answer ends keeps
        the beginning of its arguments. So nothing is lost but markers and the white space around them.
        """


class PlainParser:
    """All is text."""

    def push(self, text: str) -> list[Part]:
        """Return it."""
        return [TextPart(text)] if text else []

    def finish(self) -> list[Part]:
        """Return nothing."""
        return []
