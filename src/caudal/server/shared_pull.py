"""One download of a model, and the requests that watch it. It ends when nobody does any more.

The work is done in a thread of its own, which no shutdown waits for: what has arrived is kept, and the next pull goes
on from there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from caudal.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Begin = Callable[[Sequence["FileOfModel"]], None]
    Progress = Callable[[str, int, int], None]
    Work = Callable[[Begin, Progress], None]

NEWS_EVERY_S = 0.25
_SHA256_DIGITS = 64


class PullEnded(Exception):
    """Raised into the work to end it. No CaudalError: who does the work must not take it for a failure of its own."""


class FileOfModel(Protocol):
    """What is known of a file before it is brought."""

    @property
    def name(self) -> str:
        """Its path in the repository."""

    @property
    def num_bytes(self) -> int:
        """Its size."""

    @property
    def digest(self) -> str:
        """SHA-256 in hex, or a shorter one."""


@dataclass(slots=True)
class FileProgress:
    """How far a file is.

    Attributes:
        name: its path in the repository.
        digest: "sha256:" and 64 hex digits; the file's name if its SHA-256 is not known.
        num_bytes: its size.
        num_done: bytes that are here; None until it is begun.
    """

    name: str
    digest: str
    num_bytes: int
    num_done: int | None = None


class SharedPull:
    """See the module. Lives on one event loop, but for the work.

    Attributes:
        files: how far each is; empty until they are known.
        task: is done when the pull is; whoever made this sets it.
    """

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.files: tuple[FileProgress, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._news = asyncio.Event()
        self._told_s = 0.0
        self._num_watching = 0
        self._ended: Exception | None = None

    @property
    def is_ending(self) -> bool:
        """Whether it has been told to end before it was done."""
        return self._ended is not None

    async def run(self, work: Work) -> None:
        """Do the work in a thread. Raises what it raises."""
        threading.Thread(target=self._work, args=(work,), name="pull", daemon=True).start()
        await self._finished
        for file in self.files:  # also those that were here already
            file.num_done = file.num_bytes

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep it going while the block lasts, unless it is ended otherwise."""
        self._num_watching += 1
        try:
            yield
        finally:
            self._num_watching -= 1
            if not self._num_watching and not self.task.done():
                self._ended = EngineUnavailable(
                    "the pull was ended: nobody waited for it any more; pull again to go on"
                )

    async def wait(self, timeout_s: float) -> bool:
        """Return when something is new, it is done, or the time is over; say whether it is done."""
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((news, self.task), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        return self.task.done()

    def leave(self) -> None:
        """End it now: the server leaves."""
        self._ended = EngineUnavailable("the server is shutting down; pull again to go on from what has arrived")
        self._finish(self._ended)

    # In the thread.

    def _work(self, work: Work) -> None:
        error: Exception | None = None
        try:
            work(self._begin, self._tell)
        except PullEnded:
            error = self._ended
        except Exception as caught:  # noqa: BLE001 - whoever waits for it is told
            error = caught
        self._call(self._finish, error)

    def _begin(self, files: Sequence[FileOfModel]) -> None:
        self.files = tuple(
            FileProgress(
                name=file.name,
                digest=f"sha256:{file.digest}" if len(file.digest) == _SHA256_DIGITS else file.name,
                num_bytes=file.num_bytes,
            )
            for file in files
        )

    def _tell(self, name: str, num_done: int, num_bytes: int) -> None:
        if self._ended is not None:
            raise PullEnded
        for file in self.files:
            if file.name == name:
                file.num_done = num_done
        now_s = time.monotonic()
        if now_s - self._told_s >= NEWS_EVERY_S or num_done >= num_bytes:
            self._told_s = now_s
            self._call(self._announce)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has left
            self._loop.call_soon_threadsafe(function, *arguments)

    # On the loop again.

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _finish(self, error: Exception | None) -> None:
        if self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)
