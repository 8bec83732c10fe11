"""Pieces in the shapes of /v1/messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from caudal.server.answer_count import AnswerCount
from caudal.server.answer_writer import EVENT_STREAM, sse
from caudal.server.anthropic.answer_protocol import (
    AnswerMessage,
    ContentBlock,
    Event,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    Ping,
    StopDelta,
)
from caudal.server.anthropic.content_blocks import ContentBlocks
from caudal.server.anthropic.error_shape import anthropic_shape

if TYPE_CHECKING:
    from caudal.server.answer_reader import Piece
    from caudal.server.problems import Problem

_encode = msgspec.json.Encoder().encode


class MessageWriter:
    """Writes one message.

    Args:
        id_: the message's id.
        model: the model's name as the client has written it.
        num_prompt_tokens: of the prompt.
        ends_with_context: the context has less room than the client asked for.
        hides_thinking: see ContentBlocks.
        request_id: for error events.
    """

    stream_type = EVENT_STREAM

    def __init__(
        self,
        id_: str,
        model: str,
        *,
        num_prompt_tokens: int,
        ends_with_context: bool = False,
        hides_thinking: bool = False,
        request_id: str = "",
    ) -> None:
        self._id = id_
        self._model = model
        self._count = AnswerCount(num_prompt_tokens)
        self._ends_with_context = ends_with_context
        self._request_id = request_id
        self._blocks = ContentBlocks(hides_thinking=hides_thinking)
        self._begun = False

    def begin(self) -> bytes:
        """Return nothing: the message starts with the first token, when it is known what was cached."""
        return b""

    def events(self, index: int, piece: Piece) -> bytes:  # noqa: ARG002 - there is one answer
        """Return the events of a piece, the start before the first and the end after the last."""
        self._count.add(piece)
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            events.append(MessageStart(self._message([], None, None)))
        events += self._blocks.push(piece.parts)
        if piece.finish_reason is not None:
            events += self._blocks.finish()
            reason, sequence = self._stop(piece)
            delta = StopDelta(stop_reason=reason, stop_sequence=sequence)
            events.append(MessageDelta(delta=delta, usage=self._usage()))
        return b"".join([_event(event) for event in events])

    def end(self) -> bytes:
        """Return the last event."""
        return _event(MessageStop())

    def failure(self, problem: Problem) -> bytes:
        """Return an error event; the stream ends without message_stop."""
        return sse(anthropic_shape(replace(problem, request_id=self._request_id or None)), "error")

    def ping(self) -> bytes:
        """Return a ping event."""
        return _event(Ping())

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole message."""
        for _, piece in pieces:
            self._count.add(piece)
            self._blocks.push(piece.parts)
        self._blocks.finish()
        return _encode(self._message(self._blocks.finished, *self._stop(pieces[-1][1])))

    def _message(self, content: list[ContentBlock], reason: str | None, sequence: str | None) -> AnswerMessage:
        return AnswerMessage(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(),
        )

    def _stop(self, piece: Piece) -> tuple[str, str | None]:
        """Return stop_reason and stop_sequence of the last piece."""
        if isinstance(piece.stop_reason, str):
            return "stop_sequence", piece.stop_reason
        if piece.finish_reason == "length":
            return "model_context_window_exceeded" if self._ends_with_context else "max_tokens", None
        return "tool_use" if self._blocks.has_calls else "end_turn", None

    def _usage(self) -> MessageUsage:
        count = self._count
        return MessageUsage(
            input_tokens=count.num_prompt - count.num_cached,
            cache_read_input_tokens=count.num_cached,
            output_tokens=count.num_generated,
            output_tokens_details=OutputTokensDetails(count.num_reasoning),
        )


def _event(event: Event) -> bytes:
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    return sse(_encode(event), name)
