"""An id for every request, made here and told in every response.

OpenAI's clients read `x-request-id`, Anthropic's read `request-id`. An id that a client sends is given back in
`x-client-request-id` and used for nothing else: two requests may carry the same one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CLIENT_ID_CHARS = 128


class RequestIds:
    """Puts an id into the scope, as "caudal.request_id", and into the response's headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        headers = [(b"x-request-id", request_id.encode()), (b"request-id", request_id.encode())]
        given = Headers(scope=scope).get("x-request-id", "")
        if given and len(given) <= MAX_CLIENT_ID_CHARS:
            headers.append((b"x-client-request-id", given.encode("latin-1")))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self._app({**scope, "caudal.request_id": request_id}, receive, send_with_id)
