"""The answers that one HTTP request waits for: several engine requests at once, read as one stream of pieces."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from caudal.engine.engine_client import Engines
    from caudal.messages import AddRequest
    from caudal.server.answer_reader import AnswerReader, Piece
    from caudal.server.answer_timer import AnswerTimer


@dataclass(frozen=True, slots=True)
class Answer:
    """One engine request and how it is read."""

    request: AddRequest
    reader: AnswerReader
    timer: AnswerTimer


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
                await asyncio.wait_for(self._news.wait(), None if due_s is None else due_s - time.monotonic())
            except TimeoutError:
                return []

    async def _run(self, index: int, answer: Answer) -> None:
        try:
            async with aclosing(self._client.generate(answer.request)) as updates:
                async for update in updates:
                    piece = answer.reader.push(update)
                    answer.timer.note(piece)
                    self._pieces.append((index, piece))
                    self._news.set()
                    if piece.finish_reason is not None:
                        break
        except asyncio.CancelledError:
            answer.timer.end("abort")
            raise
        except Exception as error:  # noqa: BLE001 - handed to whoever reads
            answer.timer.end("error")
            self._failure = self._failure or error
        finally:
            self._num_running -= 1
            self._news.set()
