"""Paths as clients write them: doubled slashes and a slash at the end lead to the same route."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile(r"/{2,}")


class TidyPaths:
    """Rewrites the path before anybody looks at it, keys included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its path in the plain form."""
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)
