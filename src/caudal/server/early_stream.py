"""The sending side of a request whose answer may have to begin before there is anything to say.

While a model is loaded a stream is silent, and proxies and clients give up on silence. So after a while its status
line and comments are sent. What the handler sends later continues that stream; an error body becomes an event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from caudal.server.answer_writer import EVENT_STREAM, PING, sse, stream_start
from caudal.server.disconnects import until_gone

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Message, Receive, Send

Result = TypeVar("Result")


class EarlyStream:
    """An ASGI `send` that may be ahead of the handler.

    Args:
        send: the server's own.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False
        self._is_error = False
        self._error = b""

    async def ping(self) -> None:
        """Send a comment, after the status line of a stream if there was none yet."""
        if not self._has_begun:
            self._has_begun = True
            await self._send(stream_start(EVENT_STREAM))
        await self._send({"type": "http.response.body", "body": PING, "more_body": True})

    async def __call__(self, message: Message) -> None:
        """Send what the handler sends, as a part of the stream if that has begun."""
        if not self._has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            kind = Headers(raw=message.get("headers", [])).get("content-type", "")
            self._is_error = not kind.startswith("text/event-stream")
        elif not self._is_error:
            await self._send(message)
        else:
            self._error += message.get("body", b"")
            if not message.get("more_body", False):
                event = sse(self._error, event="error") if self._error else b""
                await self._send({"type": "http.response.body", "body": event, "more_body": False})


async def wait_alive(
    work: Coroutine[None, None, Result], receive: Receive, early: EarlyStream | None, first_s: float, ping_s: float
) -> Result:
    """Return what work returns, or stop it as soon as the client is gone.

    Args:
        work: takes long, perhaps.
        receive: of the request, whose body has been read.
        early: where to fill the silence; None if that cannot be done.
        first_s: silence before the first ping.
        ping_s: silence before further ones.

    Raises:
        ClientDisconnect: nobody waits for the answer any more.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    silence_s = first_s
    try:
        while True:
            done, _ = await asyncio.wait(
                (working, gone), timeout=None if early is None else silence_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working in done:
                return working.result()
            if gone in done:
                raise ClientDisconnect
            if early is not None:
                await early.ping()
            silence_s = ping_s
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
