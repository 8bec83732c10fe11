"""HTTP/1.1 with bounds that uvicorn's fast parser lacks: the size of a request's head, and the time to send it.

Without them a client can send a header for ever (CVE-2025-48956's class), or hold connections open by sending a byte
now and then (slow loris). What is refused here is answered in OpenAI's error shape, and the connection is closed.

An offer to go on in another protocol is ignored (RFC 9110, 7.8). Java's HttpClient makes one with every request over
plain HTTP (`Upgrade: h2c`), and httptools takes the body that follows for the other protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from caudal.server.problems import HTTPProblem, openai_shape

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
_PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose requests must begin in bounded space and time.

    Args:
        arguments: uvicorn's.
        max_head_bytes: of a request line and its headers; more is a 431.
        head_timeout_s: from the connection, or from a head's first byte, to its end; longer is a 408.
    """

    def __init__(
        self, *, max_head_bytes: int = MAX_HEAD_BYTES, head_timeout_s: float = HEAD_TIMEOUT_S, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.max_head_bytes = max_head_bytes
        self.head_timeout_s = head_timeout_s
        self._head_timer: TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_head = True
        self._is_offered = False
        self._problem = HTTPProblem(400, "what was sent is no HTTP/1.1 request", code="invalid_http")

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for the first request, but not for ever."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data on, as long as the head it belongs to is not too large."""
        if self._is_in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and self._head_bytes > self.max_head_bytes:
            self._refuse(self._too_large())
        elif self._head_timer is None and self.cycle is not None and self.cycle.response_complete:
            self._start_timer()  # these bytes began no request; uvicorn has just stopped its own clock

    def _parse(self, data: bytes) -> None:
        """Give the parser data. After an offer of another protocol it gets the head again, without the offer."""
        rest = memoryview(data)  # a packet may hold many heads: what follows each is not copied
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                except httptools.HttpParserUpgrade as end:
                    rest = rest[end.args[0] :]
                    if not self._is_offered:  # CONNECT, which has been answered
                        return
                    self._is_offered = False
                    known = self._head_without_offer()
                    self.parser = _new_parser(self)  # the old one reads no more if the connection is to be closed
                    self.parser.feed_data(known)
                else:
                    return
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self._refuse(self._problem)

    def _head_without_offer(self) -> bytes:
        start = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return start + b"".join(fields) + b"\r\n"

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        super().on_message_begin()
        self._is_in_head = True
        if self._head_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """End the count; a head that came in one piece is measured here. What is raised refuses the request."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size <= self.max_head_bytes and self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._is_offered = True  # the parser stops now, and reads this head again
            return
        self._is_in_head = False
        self._head_bytes = 0
        self._stop_timer()
        if size > self.max_head_bytes:
            self._problem = self._too_large()
            raise self._problem
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request, unless it ends only because the parser takes its body for another protocol."""
        if not self._is_offered:
            super().on_message_complete()

    def _too_large(self) -> HTTPProblem:
        message = f"the request's head is over {self.max_head_bytes} bytes; send fewer or shorter headers"
        return HTTPProblem(431, message, code="headers_too_large")

    def _refuse(self, problem: HTTPProblem) -> None:
        self._stop_timer()
        status, body = problem.problem.status, openai_shape(problem.problem)
        if not (self.cycle and not self.cycle.response_complete and self.cycle.response_started):
            head = (
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head % (status, _PHRASES[status], len(body)) + body)
        self.transport.close()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_timeout(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        message = f"the request did not begin within {self.head_timeout_s:g} s; send it faster"
        self._refuse(HTTPProblem(408, message, code="request_timeout"))


def _new_parser(protocol: BoundedProtocol) -> httptools.HttpRequestParser:
    """Return a parser as uvicorn makes it: what follows the last request of a connection is skipped."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
