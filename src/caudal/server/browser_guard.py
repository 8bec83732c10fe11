"""Keeps web pages away from a server without a key.

A page in a local browser can send requests to 127.0.0.1, and by rebinding its own name to that address it could read
the answers too. Without keys, therefore, a request that carries an Origin must come from this machine, from the
server itself or from an allowed origin, and a server on loopback answers only to loopback's names (and to those of
allowed origins). Programs send no Origin and are not affected. With keys the key is the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from caudal.server.problems import HTTPProblem, error_response
from caudal.server.settings import LOOPBACK_HOSTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from caudal.server.problems import ErrorShape
    from caudal.server.settings import ServerSettings


def _host_name(authority: str) -> str:
    """Return the name in `name:port` or `[address]:port`; "" if it is neither."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


class BrowserGuard:
    """Refuses what a foreign page has sent with 403. Used only without keys. `shape_of`: see KeyGate."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, shape_of: Callable[[str, str], ErrorShape]) -> None:
        self._app = app
        self._shape_of = shape_of
        self._origins = frozenset(settings.allowed_origins)
        names = {urlsplit(origin).hostname or "" for origin in settings.allowed_origins}
        self._own_names = frozenset({*LOOPBACK_HOSTS, *names})
        self._any_host = settings.host not in LOOPBACK_HOSTS or "*" in self._origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] == "http":
            problem = self._problem(Headers(scope=scope))
            if problem is not None:
                await error_response(problem, self._shape_of(scope["method"], scope["path"]))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: Headers) -> HTTPProblem | None:
        host = headers.get("host", "")
        if not self._any_host and host and _host_name(host) not in self._own_names:
            message = (
                f"the Host header is {host!r}, but this server listens on this machine only and has no API key; ask "
                "for 127.0.0.1, start the server with --api-key, or name the page's origin with --allowed-origin"
            )
            return HTTPProblem(403, message, code="forbidden_host")
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        if _host_name(origin.partition("://")[2]) in LOOPBACK_HOSTS or origin.partition("://")[2] == host:
            return None
        message = (
            f"pages of {origin!r} may not call this server, which has no API key; start it with --allowed-origin, "
            "or with --api-key"
        )
        return HTTPProblem(403, message, code="forbidden_origin")
