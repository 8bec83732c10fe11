"""The answers that one HTTP request waits for: several engine requests at once, read as one stream of pieces."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from caudal.messages import Update

if TYPE_CHECKING:
    from types import TracebackType

    from caudal.engine.engine_client import Engines
    from caudal.messages import AddRequest
    from caudal.server.answer_reader import Piece
    from caudal.server.answer_timer import AnswerTimer


class UpdateReader(Protocol):
    """Reads the updates of one request; see AnswerReader."""

    def push(self, update: Update) -> Piece:
        """Return what an update adds, or raise what went wrong."""


class AnswerWatcher(Protocol):
    """Is told how an answer goes, on the event loop. It may be told of the end more than once."""

    def note(self, piece: Piece) -> None:
        """See a piece; one with a finish_reason ends the answer."""

    def end(self, reason: str) -> None:
        """Learn that the answer has ended: one of FINISH_REASONS."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One engine request, how it is read, and who watches.

    Attributes:
        time_limit_s: so long after its first token the answer ends, as if it had reached its longest length.
    """

    request: AddRequest
    reader: UpdateReader
    timer: AnswerTimer
    watchers: tuple[AnswerWatcher, ...] = ()
    time_limit_s: float | None = None

    def note(self, piece: Piece) -> None:
        """Tell everyone of a piece."""
        for watcher in (self.timer, *self.watchers):
            watcher.note(piece)

    def end(self, reason: str) -> None:
        """Tell everyone of an end that no piece tells."""
        for watcher in (self.timer, *self.watchers):
            watcher.end(reason)


class Answers:
    """Runs answers while the `async with` block lasts; leaving it aborts those that have not ended.

    Args:
        client: the engine.
        answers: their indices are those of the pieces.
    """

    def __init__(self, client: Engines, answers: list[Answer]) -> None:
        self._client = client
        self._answers = answers
        self._tasks: list[asyncio.Task[None]] = []
        self._pieces: list[tuple[int, Piece]] = []
        self._failure: BaseException | None = None
        self._num_running = len(answers)
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start every answer."""
        self._tasks = [asyncio.create_task(self._run(i, answer)) for i, answer in enumerate(self._answers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next(self, timeout_s: float | None = None) -> list[tuple[int, Piece]] | None:
        """Return all new pieces with their answers' indices; [] after a silent timeout; None when all is said.

        Raises:
            CaudalError: one of the answers failed; those pieces that came before have been returned.
        """
        due_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._pieces:
                pieces, self._pieces = self._pieces, []
                return pieces
            if self._failure is not None:
                raise self._failure
            if self._num_running == 0:
                return None
            self._news.clear()
            try:
                # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with news.
                async with asyncio.timeout(None if due_s is None else due_s - time.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                return []

    async def _run(self, index: int, answer: Answer) -> None:
        try:
            await self._read(index, answer)
        except asyncio.CancelledError:
            answer.end("abort")
            raise
        except Exception as error:  # noqa: BLE001 - handed to whoever reads
            answer.end("error")
            self._failure = self._failure or error
        finally:
            self._num_running -= 1
            self._news.set()

    async def _read(self, index: int, answer: Answer) -> None:
        """Read an answer to its end, or to the end of its time."""
        has_ended = False
        try:
            async with asyncio.timeout(None) as limit, aclosing(self._client.generate(answer.request)) as updates:
                async for update in updates:
                    piece = self._push(index, answer, update)
                    has_ended = piece.finish_reason is not None
                    if has_ended:
                        return
                    if answer.time_limit_s is not None and limit.when() is None and piece.num_tokens:
                        limit.reschedule(asyncio.get_running_loop().time() + answer.time_limit_s)
        except TimeoutError:
            if not limit.expired():
                raise
            if has_ended:  # the time was up while the request was being closed
                return
            self._push(index, answer, Update(request_id=answer.request.request_id, finish_reason="length"))

    def _push(self, index: int, answer: Answer, update: Update) -> Piece:
        piece = answer.reader.push(update)
        piece.time_s = time.monotonic()
        answer.note(piece)
        self._pieces.append((index, piece))
        self._news.set()
        return piece
