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

from functools import partial
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from caudal.server.browser_guard import BrowserGuard
from caudal.server.keys.accounts import ANONYMOUS
from caudal.server.keys.key import ADMIN, INFERENCE, MODELS_WRITE
from caudal.server.keys.quota_problem import quota_problem
from caudal.server.problems import HTTPProblem, error_response
from caudal.server.scopes import OWN, scope_of
from caudal.server.visit import Visit

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from caudal.server.keys.accounts import Accounts
    from caudal.server.keys.key import Key
    from caudal.server.keys.meter import RequestMeter
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
        visit = Visit(scope, scope_of(scope["method"], scope["path"]))
        key, problem = self._admit(scope, visit)
        meter = accounts.meter(key)
        asks = scope["method"] == "POST" and visit.needs == INFERENCE
        counts = asks and problem is None and key is not ANONYMOUS
        visit.at_end(partial(self._account, visit, meter, counts=counts))
        if counts:
            refusal = accounts.limiter.begin(key)
            if refusal is None:
                visit.at_end(partial(accounts.limiter.end, key))
            else:
                problem = quota_problem(key, refusal)
        send = visit.sender(send, partial(accounts.limiter.headers, key))
        try:
            if problem is not None:
                await self._refuse(problem, scope, receive, send)
                return
            known = {"caudal.tenant": key.id, "caudal.key": key, "caudal.meter": meter, "caudal.visit": visit}
            await app({**scope, **known}, receive, send)
        finally:
            visit.end()

    def _account(self, visit: Visit, meter: RequestMeter, *, counts: bool) -> None:
        """Settle what a request used, count it and write it down."""
        accounts = self._accounts
        meter.close()
        if counts:
            accounts.count(meter, visit.status)
        if visit.needs in _WRITTEN_DOWN or visit.status in (401, 403):
            accounts.write_down(visit.record(), meter)

    def _admit(self, scope: Scope, visit: Visit) -> tuple[Key, HTTPProblem | None]:
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
