"""How the pieces of answers become the bytes of one API: events of a stream, or one body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.types import Message

    from caudal.server.answer_reader import Piece
    from caudal.server.problems import Problem

EVENT_STREAM = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Of every stream: proxies pass each piece on as it comes."""
PING = b": ping\n\n"
"""A comment, which every reader of server-sent events skips."""


def stream_start(stream_type: str) -> Message:
    """Return the ASGI message with which a stream begins."""
    headers = {"content-type": stream_type, **STREAM_HEADERS}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}


class AnswerWriter(Protocol):
    """Puts pieces into an API's shapes. Used either for a stream or for a whole body, once."""

    @property
    def stream_type(self) -> str:
        """The media type of a stream: EVENT_STREAM or NDJSON."""

    def begin(self) -> bytes:
        """Return what a stream starts with before there is a piece; may be empty."""

    def events(self, index: int, piece: Piece) -> bytes:
        """Return what a piece adds to a stream; may be empty."""

    def end(self) -> bytes:
        """Return what a stream ends with after the last piece."""

    def failure(self, problem: Problem) -> bytes:
        """Return what ends a stream when something goes wrong in it."""

    def ping(self) -> bytes:
        """Return what fills silence; may be empty."""

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole answer as one document."""


def sse(data: bytes, event: str | None = None) -> bytes:
    """Return a server-sent event."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"data: " + data + b"\n\n"


def by_answer(pieces: list[tuple[int, Piece]], num_answers: int) -> list[list[Piece]]:
    """Return the pieces of each answer, in order."""
    answers: list[list[Piece]] = [[] for _ in range(num_answers)]
    for index, piece in pieces:
        answers[index].append(piece)
    return answers
