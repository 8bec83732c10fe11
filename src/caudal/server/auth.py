"""API keys, as an ASGI layer in front of the routes: who asks, and whether they may, before any work.

Used only when there are keys: without them every request passes the BrowserGuard, whatever key it carries, and
nobody reaches the admin API. `Authorization: Bearer K`, `x-api-key: K` or `api-key: K` opens every route that the
key's scopes have; a key in the URL does not, since URLs are logged. Only the liveness routes stay open: load balancers
carry no key and those say nothing about the traffic. /metrics and /tokenize are guarded too: vLLM guards only /v1,
which leaves the tokenizer and its cost to anybody.

Only hashes of keys are kept. Those of the command line are compared in constant time, those of the database are
looked up by their hashes.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders

from caudal.server.browser_guard import BrowserGuard
from caudal.server.keys.accounts import ANONYMOUS
from caudal.server.keys.key import ADMIN, INFERENCE, MODELS_WRITE
from caudal.server.keys.quota_problem import quota_problem
from caudal.server.problems import HTTPProblem, error_response
from caudal.server.scopes import OWN, scope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from caudal.server.keys.accounts import Accounts
    from caudal.server.keys.key import Key
    from caudal.server.problems import ErrorShape
    from caudal.server.settings import ServerSettings

OPEN_PATHS = frozenset({"/", "/health", "/v1/health", "/ping"})
_WRITTEN_DOWN = frozenset({INFERENCE, MODELS_WRITE, ADMIN})


class KeyGate:
    """Lets requests in by their keys.

    Args:
        app: what is behind it.
        settings: for the BrowserGuard.
        accounts: the keys, and where requests are counted and written down.
        shape_of: the error shape of the API that a method and a path belong to.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, accounts: Accounts, shape_of: Callable[[str, str], ErrorShape]
    ) -> None:
        self._app = app
        self._browser_guard = BrowserGuard(app, settings, shape_of)
        self._accounts = accounts
        self._shape_of = shape_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        accounts = self._accounts
        accounts.refresh()
        app = self._app if accounts.guarded else self._browser_guard
        if scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            await app(scope, receive, send)
            return
        visit = _Visit(scope, scope_of(scope["method"], scope["path"]))
        key, problem = self._admit(scope, visit)
        meter = accounts.meter(key)
        asks = scope["method"] == "POST" and visit.needs == INFERENCE
        counts = asks and problem is None and key is not ANONYMOUS
        if counts:
            refusal = accounts.limiter.begin(key)
            problem = None if refusal is None else quota_problem(key, refusal)
        try:
            if problem is not None:
                await self._refuse(problem, scope, receive, visit.sender(send, self._rate_limits(key)))
                return
            passed = {**scope, "caudal.tenant": key.id, "caudal.key": key, "caudal.meter": meter}
            await app(passed, receive, visit.sender(send, self._rate_limits(key)))
        finally:
            meter.close()
            if counts:
                if problem is None:
                    accounts.limiter.end(key)
                accounts.count(meter, visit.status)
            if visit.needs in _WRITTEN_DOWN or visit.status in (401, 403):
                accounts.write_down(visit.record(), meter)

    def _admit(self, scope: Scope, visit: _Visit) -> tuple[Key, HTTPProblem | None]:
        """Return who asks, and why not if they may not."""
        accounts = self._accounts
        key: Key = ANONYMOUS
        if accounts.guarded:
            found = accounts.find(_given(Headers(scope=scope)))
            if found is None:
                return key, _unauthorized(
                    "no valid API key; send the server's key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                )
            key = found
            refusal = key.refusal(accounts.now())
            if refusal is not None:
                return key, _unauthorized(f"the API key {key.id} is {refusal}; ask the administrator for another")
        if visit.needs != OWN and not key.may(visit.needs):
            message = (
                f"this needs a key with the scope {visit.needs!r}; keys are made with `caudal keys create NAME --scope "
                f"{visit.needs}`"
            )
            return key, HTTPProblem(403, message, code="insufficient_permissions")
        if accounts.audit_refuses:
            message = "the audit log cannot be written, and this server answers nothing without it; see its log"
            return key, HTTPProblem(503, message, code="audit_unavailable", headers={"retry-after": "5"})
        return key, None

    def _rate_limits(self, key: Key) -> Callable[[], dict[str, str]]:
        return lambda: self._accounts.limiter.headers(key)

    async def _refuse(self, problem: HTTPProblem, scope: Scope, receive: Receive, send: Send) -> None:
        shape = self._shape_of(scope["method"], scope["path"])
        await error_response(problem, shape)(scope, receive, send)


def _given(headers: Headers) -> list[str]:
    """Return the keys that a request carries."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), headers.get("api-key", "")]
    if scheme.lower() == "bearer":
        given.append(token.strip())
    return given


def _unauthorized(message: str) -> HTTPProblem:
    return HTTPProblem(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


class _Visit:
    """What is known of a request from outside: for the audit log."""

    def __init__(self, scope: Scope, needs: str) -> None:
        self.needs = needs
        self.status = 499  # nothing was answered: the client had gone
        self._scope = scope
        self._begun_s = time.monotonic()
        self._made_id = "caudal.request_id" not in scope
        self._id = scope.setdefault("caudal.request_id", f"req-{secrets.token_hex(12)}")

    def sender(self, send: Send, rate_limits: Callable[[], dict[str, str]]) -> Send:
        """Return a send that notes the status, and adds the headers of the limits."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                headers = MutableHeaders(scope=message)
                if self._made_id:
                    headers.setdefault("x-request-id", self._id)
                headers.update(rate_limits())
            await send(message)

        return noting

    def record(self) -> dict[str, Any]:
        """Return what the audit log has of it."""
        client = self._scope.get("client")
        return {
            "request_id": self._id,
            "method": self._scope["method"],
            "route": self._scope["path"][:200],
            "status": self.status,
            "duration_s": round(time.monotonic() - self._begun_s, 4),
            "client": client[0] if client else "",
        }
