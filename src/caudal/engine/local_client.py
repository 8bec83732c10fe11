"""An engine in a thread of this process, behind the same methods as EngineClient. For tests and small embeddings."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING

from caudal.engine.engine_client import STALL_S, ProgressWatch
from caudal.engine.engine_loop import EngineLoop, SteppedEngine
from caudal.engine.request_table import RequestTable
from caudal.engine.vocabulary_source import VocabularySource
from caudal.errors import EngineUnavailable
from caudal.messages import (
    AbortRequest,
    AddRequest,
    EngineReady,
    EngineStats,
    FromEngine,
    Shutdown,
    ToEngine,
    Update,
    Updates,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from caudal.messages import Vocabulary


class LocalEngineClient:
    """Runs a given engine in a thread; a native crash takes this process along.

    Args:
        engine: the engine; the thread owns it until close().
        stall_s: a busy engine without a finished step for this long counts as unhealthy.
    """

    def __init__(self, engine: SteppedEngine, *, stall_s: float = STALL_S) -> None:
        self._engine = engine
        self._stall_s = stall_s
        self._requests = RequestTable()
        self._watch = ProgressWatch()
        self._vocabulary = VocabularySource()
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ready: EngineReady | None = None
        self._leaving = False
        self.num_restarts = 0  # its thread dies with the process

    @property
    def ready(self) -> EngineReady | None:
        """Facts about the loaded model; None before start()."""
        return self._ready

    @property
    def stats(self) -> EngineStats:
        """The engine's latest counters and gauges."""
        return self._watch.stats

    @property
    def healthy(self) -> bool:
        """Whether requests are taken and steps make progress."""
        alive = self._thread is not None and self._thread.is_alive()
        return alive and not self._leaving and self._watch.silent_s < self._stall_s

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    async def start(self) -> None:
        """Start the thread."""
        loop = asyncio.get_running_loop()

        def send(message: FromEngine) -> None:
            loop.call_soon_threadsafe(self._receive, message)

        self._ready = self._engine.ready_info()
        engine_loop = EngineLoop(self._engine, self._inbox, send)
        self._thread = threading.Thread(target=engine_loop.run, name="engine", daemon=True)
        self._thread.start()

    def know_vocabulary(self, make: Callable[[], Vocabulary]) -> None:
        """Take what makes the vocabulary, which the engine is told before its first grammar. Called in a thread."""
        self._vocabulary.know(make)

    def generate(self, request: AddRequest) -> AsyncGenerator[Update, None]:
        """Yield the request's updates; closing the generator, or cancelling its reader, aborts the request."""
        if self._leaving or self._ready is None:
            message = "the engine is not running; call start() first, and ask nothing after drain() or close()"
            raise EngineUnavailable(message)
        return self._requests.stream(request, self._send, self._vocabulary.prepare if request.grammar else None)

    def _send(self, message: ToEngine) -> None:
        vocabulary = self._vocabulary.due(message) if isinstance(message, AddRequest) else None
        if vocabulary is not None:
            self._inbox.put(vocabulary)
        self._inbox.put(message)

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last update with finish_reason "abort"."""
        self._inbox.put(AbortRequest(request_id=request_id))

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for the open ones; return whether they all ended in time."""
        self._leaving = True
        return await self._requests.wait_until_empty(timeout_s)

    async def close(self) -> None:
        """Stop the thread. Open requests fail with EngineUnavailable."""
        self._leaving = True
        self._requests.fail_all(EngineUnavailable("the server is shutting down; the answer is not complete"))
        self._inbox.put(Shutdown())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._ready = None

    def _receive(self, message: FromEngine) -> None:
        self._watch.note(message)
        if isinstance(message, Updates):
            self._requests.deliver(message.updates)
