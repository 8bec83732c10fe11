"""API keys, as an ASGI layer in front of the routes.

Used only when there are keys: without them every request passes, whatever key it carries. `Authorization: Bearer K`,
`x-api-key: K` or `api-key: K` opens every route. Only the liveness routes stay open, since load balancers carry no
key and those say nothing about the traffic. /metrics and /tokenize are guarded too: vLLM guards only /v1, which
leaves the tokenizer and its cost to anybody.

Only hashes of the keys are kept, and they are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from caudal.server.problems import HTTPProblem, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/", "/health", "/v1/health", "/ping"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class RequireKey:
    """Refuses requests without a known key with 401."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = tuple(_digest(key) for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        if self._knows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        problem = HTTPProblem(
            401,
            "no valid API key; send the server's key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error_response(problem)(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), headers.get("api-key", "")]
        if scheme.lower() == "bearer":
            given.append(token.strip())
        known = False
        for digest in self._digests:
            for key in given:
                known |= hmac.compare_digest(_digest(key), digest)
        return known
