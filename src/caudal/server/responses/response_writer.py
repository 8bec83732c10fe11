"""Pieces in the shapes of /v1/responses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from caudal.server.answer_count import AnswerCount
from caudal.server.answer_writer import EVENT_STREAM, PING, sse
from caudal.server.responses.events import ResponseEvent
from caudal.server.responses.resource import (
    IncompleteDetails,
    InputTokensDetails,
    ReasoningTokens,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from caudal.messages import TokenLogprobs
    from caudal.server.answer_reader import Piece
    from caudal.server.openai.chat_protocol import TokenLogprob
    from caudal.server.problems import Problem
    from caudal.server.responses.events import AnswerEvent
    from caudal.server.responses.output import Output

    Labels = Callable[[TokenLogprobs], TokenLogprob]
    Ended = Callable[[ResponseObject], None]

_encode = msgspec.json.Encoder().encode
_FAILURES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponseWriter:
    """Writes one response.

    Args:
        response: as it is at its beginning.
        output: takes the answer's parts.
        num_prompt_tokens: of the prompt.
        labels: turn a token's log-probabilities into the API's form; None if they are not asked for.
        ended: is told of the response when it has ended, before the client is.
    """

    stream_type = EVENT_STREAM

    def __init__(
        self,
        response: ResponseObject,
        output: Output,
        *,
        num_prompt_tokens: int,
        labels: Labels | None = None,
        ended: Ended | None = None,
    ) -> None:
        self.response = response
        self._output = output
        self._count = AnswerCount(num_prompt_tokens)
        self._labels = labels
        self._ended = ended
        self._num_events = 0

    def begin(self) -> bytes:
        """Return the events before the first token."""
        created = self._response_event("response.created")
        queued = self._response_event("response.queued") if self.response.status == "queued" else b""
        self.response = msgspec.structs.replace(self.response, status="in_progress")
        return created + queued + self._response_event("response.in_progress")

    def events(self, index: int, piece: Piece) -> bytes:  # noqa: ARG002 - there is one answer
        """Return the events of a piece; those of the last item's end after the last."""
        events = self._push(piece)
        return b"".join([self._event(event) for event in events])

    def end(self) -> bytes:
        """Return the last event."""
        self._tell_end()
        return self._response_event(f"response.{self.response.status}")

    def failure(self, problem: Problem) -> bytes:
        """Return response.failed."""
        self.fail(problem)
        return self._response_event("response.failed")

    def fail(self, problem: Problem) -> None:
        """End the response with an error."""
        code = _FAILURES.get(problem.status, "server_error")
        if problem.code == "context_length_exceeded":
            code = problem.code
        self._stop("failed", error=ResponseFailure(code, problem.message))
        self._tell_end()

    def cancel(self) -> None:
        """End the response with what there is."""
        self._stop("cancelled", output=self._output.items())
        self._tell_end()

    def ping(self) -> bytes:
        """Return a comment."""
        return PING

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole response."""
        for _, piece in pieces:
            self._push(piece)
        self._tell_end()
        return _encode(self.response)

    def _push(self, piece: Piece) -> list[AnswerEvent]:
        self._count.add(piece)
        logprobs = [self._labels(entry) for entry in piece.logprobs] if self._labels is not None else []
        events = self._output.push(piece.parts, logprobs)
        if piece.finish_reason is None:
            return events
        status = "incomplete" if piece.finish_reason == "length" else "completed"
        events += self._output.finish(status)
        details = IncompleteDetails("max_output_tokens") if status == "incomplete" else None
        self._stop(status, output=self._output.finished, incomplete_details=details)
        return events

    def _stop(self, status: str, **changes: object) -> None:
        now = int(time.time())
        self.response = msgspec.structs.replace(
            self.response,
            status=status,
            completed_at=now if status in ("completed", "incomplete") else None,
            usage=self._usage() if status != "failed" else None,
            **changes,
        )

    def _tell_end(self) -> None:
        if self._ended is not None:
            self._ended(self.response)

    def _usage(self) -> ResponseUsage:
        count = self._count
        return ResponseUsage(
            input_tokens=count.num_prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=count.num_cached),
            output_tokens=count.num_generated,
            output_tokens_details=ReasoningTokens(count.num_reasoning),
            total_tokens=count.num_prompt + count.num_generated,
        )

    def _response_event(self, kind: str) -> bytes:
        return self._event(ResponseEvent(type=kind, response=self.response))

    def _event(self, event: AnswerEvent | ResponseEvent) -> bytes:
        numbered = msgspec.structs.replace(event, sequence_number=self._num_events)
        self._num_events += 1
        return sse(_encode(numbered), event.type)
