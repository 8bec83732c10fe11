"""A streaming chat client that costs little: it shares the cores with the servers that it measures.

httptools parses HTTP in C; of an event only what is counted is looked at, and nothing is decoded but the last one.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import httptools

# A chunk that carries text: `content` of a chat, not empty and not null.
TEXT = re.compile(rb'"content":\s*"[^"]')
USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
SERVER_ERROR = re.compile(rb'"error":\s*\{')


@dataclass(slots=True)
class StreamTimes:
    """One request, by the clock of `time.perf_counter`.

    Attributes:
        num_prompt_tokens: of the request, as whoever made it counts them.
        sent_s: when the connection was begun.
        token_s: arrival of every event with text.
        num_tokens: tokens generated: what the server says at the end, else the events with text.
        failure: what went wrong; "" if nothing did.
        is_complete: the answer came to its end; neither complete nor failed is one that we left.
        ended_s: when the connection was closed.
    """

    num_prompt_tokens: int
    sent_s: float
    token_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    failure: str = ""
    is_complete: bool = False
    ended_s: float = 0.0


class _Stream(asyncio.Protocol):
    """The connection of one request."""

    def __init__(self, request: bytes, times: StreamTimes) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._times = times
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._usage = 0
        self._now_s = 0.0

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._times.failure = f"no HTTP: {error}"

    def on_body(self, body: bytes) -> None:
        """Look at the events that are complete."""
        times = self._times
        *events, self._rest = (self._rest + body).split(b"\n\n")
        status = self._parser.get_status_code()
        if status != 200:
            times.failure = f"HTTP {status}: {body[:200].decode(errors='replace')}"
            return
        for event in events:
            if TEXT.search(event):
                times.token_s.append(self._now_s)
            elif event.startswith(b"data: [DONE]"):
                times.is_complete = True
            elif SERVER_ERROR.search(event):
                times.failure = event[:200].decode(errors="replace")
            usage = USAGE.search(event)
            if usage:
                self._usage = int(usage[1])

    def connection_lost(self, exc: Exception | None) -> None:
        times = self._times
        times.ended_s = time.perf_counter()
        times.num_tokens = self._usage if times.is_complete and self._usage else len(times.token_s)
        if exc is not None and not times.is_complete and not times.failure:
            times.failure = f"connection lost: {exc}"
        if not self.ended.done():
            self.ended.set_result(None)


async def stream_chat(
    address: tuple[str, int], body: dict[str, Any], times: StreamTimes, deadline_s: float = float("inf")
) -> None:
    """Ask for a streamed chat completion and fill `times`; leave at `deadline_s`, which is no failure."""
    content = json.dumps(body).encode()
    head = (
        f"POST /chat/completions HTTP/1.1\r\nhost: {address[0]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    times.sent_s = time.perf_counter()
    try:
        transport, stream = await loop.create_connection(lambda: _Stream(head.encode() + content, times), *address)
    except OSError as error:
        times.failure, times.ended_s = f"no connection: {error}", time.perf_counter()
        return
    left_s = None if deadline_s == float("inf") else max(0.0, deadline_s - time.perf_counter())
    try:
        await asyncio.wait_for(asyncio.shield(stream.ended), left_s)
        if not times.is_complete and not times.failure:
            times.failure = "the stream ended early"
    except TimeoutError:
        pass
    finally:
        transport.abort()
        await stream.ended
