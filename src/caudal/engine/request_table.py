"""The open requests of an engine client: who waits for which updates. Lives on one event loop; no locks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from caudal import errors
from caudal.errors import CaudalError, RequestError
from caudal.messages import AbortRequest, AddRequest, ToEngine, TokenLogprobs, Update

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


def error_from_kind(kind: str, message: str, parameter: str | None = None) -> CaudalError:
    """Return the exception that another process raised, from its class name and its text."""
    error_class = getattr(errors, kind, None)
    if not (isinstance(error_class, type) and issubclass(error_class, CaudalError)):
        return CaudalError(f"{kind}: {message}")
    if issubclass(error_class, RequestError):
        return error_class(message, parameter=parameter)
    return error_class(message)


def refusal(request_id: str, error: CaudalError) -> Update:
    """Return the last update of a request that the engine did not take."""
    return Update(
        request_id=request_id,
        finish_reason="error",
        error=str(error),
        error_kind=type(error).__name__,
        error_parameter=error.parameter if isinstance(error, RequestError) else None,
    )


def merge_updates(updates: list[Update]) -> Update:
    """Return one update that says what several consecutive ones of a request said."""
    if len(updates) == 1:
        return updates[0]
    last = updates[-1]
    logprobs: list[TokenLogprobs] = [entry for update in updates for entry in update.logprobs or ()]
    return Update(
        request_id=last.request_id,
        token_ids=[token_id for update in updates for token_id in update.token_ids],
        logprobs=logprobs or None,
        prompt_logprobs=next((u.prompt_logprobs for u in updates if u.prompt_logprobs is not None), None),
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        num_cached_tokens=max(update.num_cached_tokens for update in updates),
        start_times=next((u.start_times for u in updates if u.start_times is not None), None),
        error=last.error,
        error_kind=last.error_kind,
        error_parameter=last.error_parameter,
    )


class _Waiting:
    """One open request: updates not yet read, or the reason why there will be none."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.failure: CaudalError | None = None
        self.news = asyncio.Event()

    async def next(self) -> Update:
        """Return everything new as one update; raise what ended the request instead of an answer."""
        while not self.updates:
            if self.failure is not None:
                raise self.failure
            self.news.clear()
            await self.news.wait()
        update = merge_updates(self.updates)
        self.updates = []
        if update.error_kind is not None:
            raise error_from_kind(update.error_kind, update.error or "", update.error_parameter)
        return update


class RequestTable:
    """Open requests by id."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def stream(
        self,
        request: AddRequest,
        send: Callable[[ToEngine], None],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[Update, None]:
        """Send the request and yield its updates; several that wait are yielded as one. `before` is awaited first.

        Closing the generator, or cancelling the task that waits in it, aborts the request.

        Raises:
            RequestError, Overloaded, EngineUnavailable: the engine refused the request.
            EngineDead: the engine's process died.
        """
        waiting = _Waiting()
        self._waiting[request.request_id] = waiting
        self._empty.clear()
        runs = False
        try:
            if before is not None:
                await before()
            if waiting.failure is not None:  # the engine for which this was prepared is gone
                raise waiting.failure
            send(request)
            runs = True
            while runs:
                try:
                    update = await waiting.next()
                except CaudalError:
                    runs = False
                    raise
                runs = update.finish_reason is None
                yield update
        finally:
            self._forget(request.request_id)
            if runs:
                send(AbortRequest(request_id=request.request_id))

    def deliver(self, updates: list[Update]) -> None:
        """Hand updates to those who wait for them; updates of forgotten requests are dropped."""
        for update in updates:
            waiting = self._waiting.get(update.request_id)
            if waiting is not None:
                waiting.updates.append(update)
                waiting.news.set()

    def fail_all(self, error: CaudalError) -> None:
        """End every open request with this exception, after the updates that have arrived."""
        for waiting in self._waiting.values():
            waiting.failure = error
            waiting.news.set()

    async def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until no request is open; return whether that happened in time."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _forget(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        if not self._waiting:
            self._empty.set()
