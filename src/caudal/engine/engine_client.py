"""The async client of an engine process: starts it, speaks to it, watches it, and starts it again when it dies.

Everything here runs on one event loop. The process is the other end of a socket pair: that end closing is how a
death is noticed, whatever the cause, so open requests fail at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from caudal.engine.engine_process import DEFAULT_ENGINE
from caudal.engine.framing import FrameBuffer, pack_frame
from caudal.engine.request_table import RequestTable, error_from_kind
from caudal.engine.vocabulary_source import VocabularySource
from caudal.errors import CaudalError, EngineDead, EngineUnavailable
from caudal.messages import (
    AbortRequest,
    AddRequest,
    EngineFailed,
    EngineReady,
    EngineStats,
    FromEngine,
    ToEngine,
    Update,
    Updates,
    decode_from_engine,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from caudal.config import EngineConfig
    from caudal.messages import Vocabulary

log = logging.getLogger(__name__)

STALL_S = 10.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 30.0
GOOD_RUN_S = 60.0
_EXIT_GRACE_S = 2.0


class Engines(Protocol):
    """What the server needs of an engine, wherever it runs. EngineClient and LocalEngineClient are two."""

    @property
    def ready(self) -> EngineReady | None:
        """Facts about the loaded model; None while there is none."""

    @property
    def stats(self) -> EngineStats:
        """The engine's latest counters and gauges."""

    @property
    def healthy(self) -> bool:
        """Whether requests are taken and steps make progress."""

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""

    def know_vocabulary(self, make: Callable[[], Vocabulary]) -> None:
        """Take what makes the vocabulary, which the engine is told before its first grammar. Called in a thread."""

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again after it had died."""

    def generate(self, request: AddRequest) -> AsyncGenerator[Update, None]:
        """Yield the request's updates; closing the generator aborts the request."""

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last update with finish_reason "abort"."""

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for the open ones; return whether they all ended in time."""

    async def close(self) -> None:
        """Stop the engine. Open requests fail with EngineUnavailable."""


class ProgressWatch:
    """Knows when an engine last showed that it is alive.

    News of requests, a new step and an idle heartbeat are such signs; a busy engine whose step count stands still
    gives none.
    """

    def __init__(self) -> None:
        self.stats = EngineStats()
        self._seen_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._seen_s

    def note(self, message: FromEngine) -> None:
        """Look at a message from the engine."""
        if isinstance(message, EngineStats):
            alive = not message.busy or message.num_steps != self.stats.num_steps
            self.stats = message
            if not alive:
                return
        self._seen_s = time.monotonic()


class _Channel(asyncio.Protocol):
    """The API process's end of the socket."""

    def __init__(self, on_message: Callable[[FromEngine], None]) -> None:
        self._on_message = on_message
        self._buffer = FrameBuffer()
        self._transport: asyncio.WriteTransport | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has the methods, not the class

    def data_received(self, data: bytes) -> None:
        """Hand on every message that is complete."""
        for payload in self._buffer.push(data):
            self._on_message(decode_from_engine(payload))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause does not matter
        """Note that the process is gone."""
        self.closed.set()

    def send(self, payload: bytes) -> None:
        """Send a frame; to a process that is gone, nothing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack_frame(payload))

    def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()


class EngineClient:
    """An engine in its own process.

    Args:
        config: given to the process.
        engine_factory: `module:function` that loads the engine there.
        stall_s: a busy engine without a finished step for this long counts as unhealthy.
    """

    def __init__(self, config: EngineConfig, *, engine_factory: str = DEFAULT_ENGINE, stall_s: float = STALL_S) -> None:
        self._config = config
        self._engine_factory = engine_factory
        self._stall_s = stall_s
        self._requests = RequestTable()
        self._watch = ProgressWatch()
        self._vocabulary = VocabularySource()
        self._channel: _Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: EngineReady | None = None
        self._failed: EngineFailed | None = None
        self._ready_or_failed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._leaving = False
        self._retry_at_s = 0.0
        self.num_restarts = 0

    @property
    def ready(self) -> EngineReady | None:
        """Facts about the loaded model; None before it is loaded and while the process is restarted."""
        return self._ready

    @property
    def stats(self) -> EngineStats:
        """The latest counters and gauges; the counters begin again when the process does."""
        return self._watch.stats

    @property
    def healthy(self) -> bool:
        """Whether requests are taken and steps make progress."""
        return self._ready is not None and not self._leaving and self._watch.silent_s < self._stall_s

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def process_id(self) -> int | None:
        """The process now running, if there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until its model is loaded.

        Raises:
            CheckpointError, ConfigError, CaudalError: what the engine said when it could not start.
            EngineDead: the process died without a word.
        """
        await self._spawn()
        self._watcher = asyncio.create_task(self._keep_running(), name="engine watcher")

    def know_vocabulary(self, make: Callable[[], Vocabulary]) -> None:
        """Take what makes the vocabulary, which the engine is told before its first grammar. Called in a thread."""
        self._vocabulary.know(make)

    def generate(self, request: AddRequest) -> AsyncGenerator[Update, None]:
        """Yield the request's updates; closing the generator, or cancelling its reader, aborts the request.

        Raises:
            EngineUnavailable: there is no engine now; raised by this call.
            RequestError, Overloaded: the engine refused the request; raised by the generator.
            EngineDead: the process died; raised by the generator.
        """
        if self._leaving:
            message = "the server is shutting down; ask another one or try again later"
            raise EngineUnavailable(message)
        if self._ready is None:
            message = "the engine is starting; try again in a moment"
            raise EngineUnavailable(message, retry_after_s=max(1.0, self._retry_at_s - time.monotonic()))
        return self._requests.stream(request, self._send, self._vocabulary.prepare if request.grammar else None)

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last update with finish_reason "abort"."""
        self._send(AbortRequest(request_id=request_id))

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for the open ones; return whether they all ended in time."""
        self._leaving = True
        return await self._requests.wait_until_empty(timeout_s)

    async def close(self) -> None:
        """Stop the process. Open requests fail with EngineUnavailable."""
        self._leaving = True
        self._requests.fail_all(EngineUnavailable("the server is shutting down; the answer is not complete"))
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()  # the process leaves when it sees this, even from inside a step
        await self._end_process()
        self._ready = None

    def _send(self, message: ToEngine) -> None:
        if self._channel is not None:
            vocabulary = self._vocabulary.due(message) if isinstance(message, AddRequest) else None
            if vocabulary is not None:
                self._channel.send(encode(vocabulary))
            self._channel.send(encode(message))
        elif isinstance(message, AddRequest):  # the process died since generate() was called
            text = "the engine is starting; try again in a moment"
            raise EngineUnavailable(text)

    def _receive(self, message: FromEngine) -> None:
        self._watch.note(message)
        if isinstance(message, Updates):
            self._requests.deliver(message.updates)
        elif isinstance(message, EngineReady):
            self._ready = message
            self._ready_or_failed.set()
        elif isinstance(message, EngineFailed):
            self._failed = message
            self._ready_or_failed.set()

    async def _spawn(self) -> None:
        """Start a process and wait until it is ready; raise why it is not."""
        self._failed = None
        self._vocabulary.forget_told()
        self._ready_or_failed.clear()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)  # noqa: FBT003 - the standard library's signature
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            loop = asyncio.get_running_loop()
            _, self._channel = await loop.create_unix_connection(lambda: _Channel(self._receive), sock=ours)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the folder that the server was started in is no place to import from
                "-m",
                "caudal.engine.engine_process",
                "--fd",
                str(theirs.fileno()),
                "--engine",
                self._engine_factory,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else asyncio.subprocess.DEVNULL,
            )
        self._channel.send(msgspec.msgpack.encode(self._config))
        died = asyncio.create_task(self._channel.closed.wait())
        spoke = asyncio.create_task(self._ready_or_failed.wait())
        try:
            await asyncio.wait((died, spoke), return_when=asyncio.FIRST_COMPLETED)
        finally:
            died.cancel()
            spoke.cancel()
        if self._ready is None:
            code = await self._end_process()
            if self._failed is not None:
                raise error_from_kind(self._failed.kind, self._failed.error)
            message = f"the engine process ended while it loaded the model ({describe_exit(code)})"
            raise EngineDead(message)

    async def _end_process(self) -> int | None:
        """Make sure that the process is gone, gently at first; return its exit code."""
        process = self._process
        if process is None:
            return None
        for stop in (None, process.terminate, process.kill):
            if stop is not None and process.returncode is None:
                stop()
            try:
                await asyncio.wait_for(process.wait(), _EXIT_GRACE_S)
                break
            except TimeoutError:
                continue
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._process = None
        return process.returncode

    async def _keep_running(self) -> None:
        """Start the process again whenever it dies, waiting longer each time that it dies young."""
        backoff_s = FIRST_BACKOFF_S
        started_s = time.monotonic()
        while True:
            if self._channel is not None:
                await self._channel.closed.wait()
            await self._mourn()
            if self._leaving:
                return  # it drained and left, as we do
            if time.monotonic() - started_s > GOOD_RUN_S:
                backoff_s = FIRST_BACKOFF_S
            self._retry_at_s = time.monotonic() + backoff_s
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            started_s = time.monotonic()
            self.num_restarts += 1
            try:
                await self._spawn()
            except (CaudalError, OSError) as error:
                log.error("the engine did not start again: %s", error)  # noqa: TRY400 - the sentence says it all

    async def _mourn(self) -> None:
        """Fail what the dead process was working on."""
        had_been_ready = self._ready is not None
        self._ready = None
        died = EngineDead("the engine process died while it worked on this request; it is being restarted")
        self._requests.fail_all(died)
        code = await self._end_process()
        if had_been_ready:
            log.error("the engine process died (%s); starting it again", describe_exit(code))


def describe_exit(code: int | None) -> str:
    """Say how a process ended, from its return code."""
    if code is None:
        return "no exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
