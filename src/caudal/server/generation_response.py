"""The HTTP answer of a generating route: one JSON body, or server-sent events. Gone clients abort their requests.

The status line of a stream waits a little for the first news, so that what the engine refuses, or fails at once, gets
a status of its own. Later failures are an `error` event, and the stream ends without [DONE]. Silence is filled with
comments, which every client skips.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.responses import Response

from caudal.server.answers import Answer, Answers
from caudal.server.error_bodies import describe_error, error_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from caudal.engine.engine_client import Engines
    from caudal.server.admission import Admission
    from caudal.server.answer_reader import Piece
    from caudal.server.settings import ServerSettings

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class AnswerWriter(Protocol):
    """Puts pieces into a protocol's shapes. Used either for a stream or for a whole body."""

    def events(self, index: int, piece: Piece) -> list[bytes]:
        """Return the JSON documents that a piece adds to a stream."""

    def last_events(self) -> list[bytes]:
        """Return the JSON documents after the last piece."""

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole answer as one JSON document."""


def by_answer(pieces: list[tuple[int, Piece]], num_answers: int) -> list[list[Piece]]:
    """Return the pieces of each answer, in order."""
    answers: list[list[Piece]] = [[] for _ in range(num_answers)]
    for index, piece in pieces:
        answers[index].append(piece)
    return answers


def sse(data: bytes) -> bytes:
    """Return a server-sent event."""
    return b"data: " + data + b"\n\n"


class GenerationResponse(Response):
    """Does the work of a generating route while it is sent.

    Args:
        client: the engine.
        answers: what to ask of it.
        writer: the protocol's shapes.
        stream: send events, not one body.
        admission: room for the answers is held until the last of them has ended.
        settings: the server's.
    """

    def __init__(
        self,
        *,
        client: Engines,
        answers: list[Answer],
        writer: AnswerWriter,
        stream: bool,
        admission: Admission,
        settings: ServerSettings,
    ) -> None:
        super().__init__()
        self._client = client
        self._answers = answers
        self._writer = writer
        self._stream = stream
        self._admission = admission
        self._settings = settings
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or stop as soon as the client is gone."""
        work = asyncio.create_task(self._answer(scope, receive, send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._admission.admit(len(self._answers)):
                async with Answers(self._client, self._answers) as answers:
                    if self._stream:
                        await self._send_events(answers, send)
                    else:
                        await self._send_body(answers, scope, receive, send)
        except Exception as error:  # noqa: BLE001 - every failure is told to the client
            if not self._started:
                await error_response(error)(scope, receive, send)
                return
            _, body, _ = describe_error(error)
            event = b"event: error\n" + sse(msgspec.json.encode(body))
            await send({"type": "http.response.body", "body": event, "more_body": False})

    async def _send_body(self, answers: Answers, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: list[tuple[int, Piece]] = []
        while (new := await answers.next()) is not None:
            pieces += new
        response = Response(self._writer.body(pieces), media_type="application/json")
        self._started = True
        await response(scope, receive, send)

    async def _send_events(self, answers: Answers, send: Send) -> None:
        pieces = await answers.next(self._settings.first_byte_wait_s)
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        while pieces is not None:
            events = [sse(data) for index, piece in pieces for data in self._writer.events(index, piece)]
            if events:
                await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
            pieces = await answers.next(self._settings.ping_interval_s)
            if pieces == []:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
        end = b"".join(sse(data) for data in self._writer.last_events()) + DONE
        await send({"type": "http.response.body", "body": end, "more_body": False})


async def _until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
