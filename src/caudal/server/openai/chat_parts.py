"""The parts of an answer in the shapes of chat completions: deltas of a stream, or one message."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from msgspec import UNSET

from caudal.server.openai.chat_protocol import (
    AnswerMessage,
    CalledFunction,
    Delta,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.tools.parts import Part


def new_call_id() -> str:
    """Return an id for a call of a tool."""
    return f"call_{secrets.token_hex(12)}"


class ChunkParts:
    """The deltas of one answer's stream."""

    def __init__(self) -> None:
        self._has_calls = False

    def deltas(self, parts: Sequence[Part]) -> list[Delta]:
        """Return what parts add to the message."""
        return [self._delta(part) for part in parts]

    def _delta(self, part: Part) -> Delta:
        if isinstance(part, TextPart):
            return Delta(content=part.text)
        if isinstance(part, ReasoningPart):
            return Delta(reasoning_content=part.text, reasoning=part.text)
        if isinstance(part, CallBegin):
            self._has_calls = True
            begin = FunctionDelta(name=part.name, arguments="")
            return Delta(
                tool_calls=[ToolCallDelta(index=part.index, id=new_call_id(), type="function", function=begin)]
            )
        return Delta(tool_calls=[ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.text))])

    def finish_reason(self, reason: str) -> str:
        """Return the reason that clients are told: an answer that ends with calls waits for their results."""
        return "tool_calls" if self._has_calls and reason == "stop" else reason


def message_of(parts: Sequence[Part]) -> AnswerMessage:
    """Return a whole answer as a message."""
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = [
        ToolCall(id=new_call_id(), function=CalledFunction(name=begin.name, arguments=arguments_of(parts, begin.index)))
        for begin in parts
        if isinstance(begin, CallBegin)
    ]
    return AnswerMessage(
        content=text if text or not calls else None,
        reasoning_content=reasoning or UNSET,
        reasoning=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def arguments_of(parts: Sequence[Part], index: int) -> str:
    """Return the arguments of an answer's call as JSON text."""
    return "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == index) or "{}"
