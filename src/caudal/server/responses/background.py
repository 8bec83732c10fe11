"""Responses that are made while no client waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from caudal.server.answers import Answer, Answers
from caudal.server.problems import describe_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AsyncExitStack

    from caudal.server.loaded_model import LoadedModel
    from caudal.server.responses.response_writer import ResponseWriter


class Run:
    """One response being made.

    Args:
        answer: what to ask of the engine.
        model: whose engine.
        writer: the response.
        held: the room for the answer, and what its request held (see Call.outlive); let go at the end.
    """

    def __init__(self, answer: Answer, model: LoadedModel, writer: ResponseWriter, held: AsyncExitStack) -> None:
        self._answer = answer
        self._model = model
        self.writer = writer
        self._held = held
        self._events: list[bytes] = []
        self._news = asyncio.Condition()
        self._is_over = False
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin."""
        self._task = asyncio.create_task(self._work())
        return self._task

    async def begun(self) -> None:
        """Return when the work has begun: from then on it lets go of what is held however it ends."""
        await self._begun.wait()

    async def cancel(self) -> None:
        """End it with what there is, unless it has ended."""
        if self._task is not None:
            await self.begun()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def events(self, ping_interval_s: float) -> AsyncIterator[bytes]:
        """Yield the events from the first to the last, as they come, and pings in long silence."""
        num_told = 0
        while True:
            try:
                async with asyncio.timeout(ping_interval_s), self._news:
                    await self._news.wait_for(lambda: self._is_over or len(self._events) > num_told)  # noqa: B023
            except TimeoutError:
                yield self.writer.ping()
            new, is_over = self._events[num_told:], self._is_over
            num_told += len(new)
            for event in new:
                yield event
            if is_over:
                return

    async def _work(self) -> None:
        self._begun.set()
        writer = self.writer
        try:
            async with self._held:
                try:
                    await self._tell(writer.begin())
                    async with Answers(self._model.client, [self._answer]) as answers:
                        while (pieces := await answers.next()) is not None:
                            await self._tell(b"".join([writer.events(0, piece) for _, piece in pieces]))
                    await self._tell(writer.end())
                except asyncio.CancelledError:
                    writer.cancel()
                    raise
                except Exception as error:  # noqa: BLE001 - told in the response
                    await self._tell(writer.failure(describe_error(error)))
        finally:
            async with self._news:
                self._is_over = True
                self._news.notify_all()

    async def _tell(self, events: bytes) -> None:
        """Hand on what there is; nothing at all would end a silence that clients still hear."""
        if not events:
            return
        async with self._news:
            self._events.append(events)
            self._news.notify_all()


class Runs:
    """The responses that are being made in the background, apart for each tenant."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Run] = {}

    async def start(self, tenant: str, run: Run) -> None:
        """Begin a response."""
        key = (tenant, run.writer.response.id)
        self._runs[key] = run
        run.start().add_done_callback(lambda _: self._runs.pop(key, None))
        await run.begun()

    def get(self, tenant: str, response_id: str) -> Run | None:
        """Return a response that is being made."""
        return self._runs.get((tenant, response_id))

    async def close(self) -> None:
        """Cancel all."""
        for run in list(self._runs.values()):
            await run.cancel()
