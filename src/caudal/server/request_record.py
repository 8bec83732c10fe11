"""What is known of one HTTP request: filled on its way, read at its end by the metrics, the log and the trace.

It never holds a prompt, an answer's text, a key or a query.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from caudal.server.keys.key import REMOVED, SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from caudal.server.answers import Answer
    from caudal.server.problems import Problem

    Watcher = Callable[["RequestRecord"], None]

_SCOPE_KEY = "caudal.record"
_CLIENT_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_GONE = 499


class RequestRecord:
    """One request.

    Attributes:
        headers: what was sent.
        request_id: made here; what a client sends names nothing in this server.
        client_request_id: the client's own X-Request-Id, if it is short and plain.
        client: its address; "" if the server does not know it.
        tenant: the id of the key that was sent; "" without keys.
        method, path: as sent, without the query; a key in the path is left out.
        route: the path of the route that answered; None if there is none.
        model: the name of the model; "" if none was needed.
        answers: what was asked of the engine.
        problem: what the client was told instead of an answer, or at the end of its stream.
        status: of the response. 499 if the client left before there was one.
        num_bytes: of the response's body.
        begun_unix_s: when it came.
        duration_s: from the first line to the last byte.
    """

    def __init__(self, scope: Scope) -> None:
        self._begun_s = time.monotonic()
        client = scope.get("client")
        self.client: str = client[0] if client else ""
        self.tenant = ""
        self.begun_unix_s = time.time()
        self.duration_s = 0.0
        self.headers = Headers(scope=scope)
        self.request_id = f"req_{secrets.token_hex(12)}"
        given = self.headers.get("x-request-id", "")
        self.client_request_id = given if _CLIENT_ID.fullmatch(given) else None
        self.method: str = scope["method"]
        self.path: str = SECRET.sub(REMOVED, scope["path"])
        self.route: str | None = None
        self.model = ""
        self.answers: list[Answer] = []
        self.problem: Problem | None = None
        self.status = _GONE
        self.num_bytes = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts: n answers to one prompt count it once."""
        prompts = {id(answer.request.prompt_token_ids): answer.timer.num_prompt_tokens for answer in self.answers}
        return sum(prompts.values())

    @property
    def num_tokens(self) -> int:
        """Generated, in all answers."""
        return sum(answer.timer.num_tokens for answer in self.answers)

    def end(self) -> None:
        """Stop its clock."""
        self.duration_s = time.monotonic() - self._begun_s

    def unix_s(self, monotonic_s: float) -> float:
        """Return a monotonic time of this request on the wall clock that began with it."""
        return self.begun_unix_s + monotonic_s - self._begun_s


def record_of(scope: Scope) -> RequestRecord | None:
    """Return a request's record; None outside an app."""
    record: RequestRecord | None = scope.get(_SCOPE_KEY)
    return record


class Recording:
    """The outermost layer: keeps a record of every request and shows it to the watchers when the request has ended.

    The request's id is in the scope as "caudal.request_id" and in every response: OpenAI's clients read `x-request-id`,
    Anthropic's `request-id`. An id that a client sends is given back as `x-client-request-id`.

    Args:
        app: what answers.
        watchers: called with each record. They must not raise.
    """

    def __init__(self, app: ASGIApp, watchers: tuple[Watcher, ...]) -> None:
        self._app = app
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope[_SCOPE_KEY] = RequestRecord(scope)
        scope["caudal.request_id"] = record.request_id
        ids = [(name, record.request_id.encode()) for name in (b"x-request-id", b"request-id")]
        if record.client_request_id is not None:
            ids.append((b"x-client-request-id", record.client_request_id.encode()))

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.body":
                record.num_bytes += len(message.get("body", b""))
            elif message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            record.status = 500 if record.status == _GONE else record.status
            raise
        finally:
            record.end()
            for watcher in self._watchers:
                watcher(record)
