"""HTTP/1.1 with bounds that uvicorn's fast parser lacks: the size of a request's head, and the time to send it.

Without them a client can send a header for ever (CVE-2025-48956's class), or hold connections open by sending a byte
now and then (slow loris). What is refused here is answered in OpenAI's error shape, and the connection is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and self._head_bytes > self.max_head_bytes:
            self._refuse(self._too_large())
        elif self._head_timer is None and self.cycle is not None and self.cycle.response_complete:
            self._start_timer()  # these bytes began no request; uvicorn has just stopped its own clock

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        super().on_message_begin()
        self._is_in_head = True
        if self._head_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """End the count; a head that came in one piece is measured here. What is raised refuses the request."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._is_in_head = False
        self._head_bytes = 0
        self._stop_timer()
        if size > self.max_head_bytes:
            self._problem = self._too_large()
            raise self._problem
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - says less than the problem
        """Answer what is no request, in the shape of every other error."""
        self._refuse(self._problem)

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
