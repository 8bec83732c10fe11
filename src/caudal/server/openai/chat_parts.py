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
    """The deltas of one answer's stream.

    Args:
        hides_reasoning: leave reasoning out.
    """

    def __init__(self, *, hides_reasoning: bool = False) -> None:
        self._hides_reasoning = hides_reasoning
        self._has_calls = False
        self._lacking: int | None = None  # the last call, while it has no arguments

    def deltas(self, parts: Sequence[Part]) -> list[Delta]:
        """Return what parts add to the message."""
        return [self._delta(part) for part in parts if not (self._hides_reasoning and isinstance(part, ReasoningPart))]

    def _delta(self, part: Part) -> Delta:
        if isinstance(part, TextPart):
            return Delta(content=part.text)
        if isinstance(part, ReasoningPart):
            return Delta(reasoning_content=part.text, reasoning=part.text)
        if isinstance(part, CallBegin):
            self._has_calls = True
            self._lacking = part.index
            begin = FunctionDelta(name=part.name, arguments="")
            return Delta(
                tool_calls=[ToolCallDelta(index=part.index, id=new_call_id(), type="function", function=begin)]
            )
        self._lacking = None
        return Delta(tool_calls=[ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.text))])

    def end(self, *, is_cut: bool) -> list[Delta]:
        """Return what the end of the answer adds: the arguments of a call without any, unless it was cut off there."""
        if self._lacking is None or is_cut:
            return []
        return [Delta(tool_calls=[ToolCallDelta(index=self._lacking, function=FunctionDelta(arguments="{}"))])]

    def finish_reason(self, reason: str) -> str:
        """Return the reason that clients are told: an answer that ends with calls waits for their results."""
        return "tool_calls" if self._has_calls and reason == "stop" else reason


def message_of(parts: Sequence[Part], *, is_cut: bool = False, hides_reasoning: bool = False) -> AnswerMessage:
    """Return a whole answer as a message.

    Args:
        parts: of the answer.
        is_cut: it was cut off, so that its last call may have no arguments yet.
        hides_reasoning: leave reasoning out.
    """
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = [
        ToolCall(
            id=new_call_id(),
            function=CalledFunction(
                name=begin.name, arguments=arguments_of(parts, begin.index) or ("" if is_cut else "{}")
            ),
        )
        for begin in parts
        if isinstance(begin, CallBegin)
    ]
    return AnswerMessage(
        content=text if text or not calls else None,
        reasoning_content=UNSET if hides_reasoning else reasoning or UNSET,
        reasoning=UNSET if hides_reasoning else reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def arguments_of(parts: Sequence[Part], index: int) -> str:
    """Return the arguments of an answer's call as JSON text; of a call that was cut off, their beginning."""
    return "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == index)
