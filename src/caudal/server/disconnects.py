"""Noticing that a client has closed its connection, and stopping what was done for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_until_gone(work: Coroutine[None, None, None], receive: Receive) -> None:
    """Do the work of sending an answer, or stop it as soon as the client is gone. Raises what the work raises."""
    sending = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        gone.cancel()
        results = await asyncio.gather(sending, gone, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
