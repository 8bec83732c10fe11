"""The HTTP answer of a generating route: one body, or a stream. Gone clients abort their requests.

The status line of a stream waits a little for the first news, so that what the engine refuses, or fails at once, gets
a status of its own. Later failures are told inside the stream, in the API's way. Silence of the stream is
filled with pings, whether or not the engine is silent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from caudal.server.answer_writer import stream_start
from caudal.server.answers import Answer, Answers
from caudal.server.disconnects import send_until_gone
from caudal.server.problems import describe_error, error_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from caudal.server.answer_reader import Piece
    from caudal.server.answer_writer import AnswerWriter
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel


class GenerationResponse(Response):
    """Does the work of a generating route while it is sent.

    Args:
        call: the request.
        model: whose engine is asked.
        answers: what to ask of it. Room for them is held until the last of them has ended.
        writer: the API's shapes.
        stream: send events, not one body.
    """

    def __init__(
        self, call: Call, model: LoadedModel, *, answers: list[Answer], writer: AnswerWriter, stream: bool
    ) -> None:
        super().__init__()
        self._call = call
        call.record.answers = answers
        model.metrics.asked(answers)
        self._client = model.client
        self._answers = answers
        self._writer = writer
        self._stream = stream
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or stop as soon as the client is gone."""
        await send_until_gone(self._answer(scope, receive, send), receive)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._call.context.admission.admit(len(self._answers), self._call.tenant):
                async with Answers(self._client, self._answers) as answers:
                    if self._stream:
                        await self._send_events(answers, send)
                    else:
                        await self._send_body(answers, scope, receive, send)
        except Exception as error:  # noqa: BLE001 - every failure is told to the client
            if not self._started:
                await error_response(error, self._call.shape, self._call.request_id)(scope, receive, send)
                return
            problem = self._call.record.problem = describe_error(error)
            event = self._writer.failure(problem)
            await send({"type": "http.response.body", "body": event, "more_body": False})

    async def _send_body(self, answers: Answers, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: list[tuple[int, Piece]] = []
        while (new := await answers.next()) is not None:
            pieces += new
        response = Response(self._writer.body(pieces), media_type="application/json")
        self._started = True
        await response(scope, receive, send)

    async def _send_events(self, answers: Answers, send: Send) -> None:
        settings = self._call.settings
        pieces = await answers.next(settings.first_byte_wait_s)
        self._started = True
        await send(stream_start(self._writer.stream_type))
        waiting = self._writer.begin()
        ping_at_s = time.monotonic() + settings.ping_interval_s
        while pieces is not None:
            waiting += b"".join([self._writer.events(index, piece) for index, piece in pieces])
            is_silent = not waiting and time.monotonic() >= ping_at_s  # many pieces have no bytes, or not yet
            if is_silent:
                waiting = self._writer.ping()
            if waiting:
                await send({"type": "http.response.body", "body": waiting, "more_body": True})
            if waiting or is_silent:
                ping_at_s = time.monotonic() + settings.ping_interval_s
            waiting = b""
            pieces = await answers.next(ping_at_s - time.monotonic())
        await send({"type": "http.response.body", "body": waiting + self._writer.end(), "more_body": False})
