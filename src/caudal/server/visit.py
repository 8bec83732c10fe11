"""One request as the layer of keys sees it: what the audit log says of it, and what is done when its work has ended.

That is mostly when its response has been sent. Work that goes on after that, as a response in the background does,
detaches it, and so ends it later; it is ended once in any case.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Scope, Send


class Visit:
    """One request.

    Args:
        scope: of ASGI.
        needs: the scope that a key must have for its route.

    Attributes:
        status: of its response; 499 if nothing was answered, since the client had gone.
    """

    def __init__(self, scope: Scope, needs: str) -> None:
        self.needs = needs
        self.status = 499
        self._scope = scope
        self._begun_s = time.monotonic()
        self._made_id = "caudal.request_id" not in scope
        self._id = scope.setdefault("caudal.request_id", f"req-{secrets.token_hex(12)}")
        self._at_end = ExitStack()

    def at_end(self, work: Callable[[], object]) -> None:
        """Do something when the request's work has ended; what was asked for last is done first."""
        self._at_end.callback(work)

    def end(self) -> None:
        """Do what is to be done at the end, unless that has been done or is now somebody else's to do."""
        self._at_end.close()

    def detach(self) -> ExitStack:
        """Hand over what is to be done at the end to work that goes on after the response.

        The request has been taken then, whether or not its client stays to be told so.
        """
        self.status = 200
        return self._at_end.pop_all()

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
