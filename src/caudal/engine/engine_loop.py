"""The loop around an engine: take messages, step, send news. It knows neither sockets nor processes.

One thread runs the loop and is the only one to touch the engine. Messages come through a queue that other threads
(or a signal handler) fill; news leaves through a callable. A step's news is one message, so 64 streams at a thousand
tokens a second cost one small message a step.
"""

from __future__ import annotations

import importlib
import queue
import time
import traceback
from typing import TYPE_CHECKING, Protocol, cast

from caudal.engine.request_table import refusal
from caudal.errors import ConfigError, EngineUnavailable, Overloaded, RequestError
from caudal.messages import (
    AbortRequest,
    AddRequest,
    EngineReady,
    EngineStats,
    FromEngine,
    Shutdown,
    Update,
    Updates,
    Vocabulary,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from caudal.config import EngineConfig
    from caudal.messages import ToEngine

BUSY_STATS_INTERVAL_S = 0.2
IDLE_STATS_INTERVAL_S = 1.0


class SteppedEngine(Protocol):
    """What the loop asks of an engine."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""

    def add_request(self, request: AddRequest) -> None:
        """Queue a request. Raises RequestError or Overloaded, and then the request is forgotten."""

    def know_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Learn what tokens stand for; requests with a grammar come after this."""

    def abort(self, request_id: str) -> Update | None:
        """Forget a request; return its last update, or None if the id is unknown."""

    def step(self) -> list[Update]:
        """Run one step. Failures of single requests are updates, not exceptions."""

    def fail_all(self, error: str) -> list[Update]:
        """Forget every request and return their last updates, finish_reason "error"."""

    def stats(self) -> EngineStats:
        """Return counters since start and gauges now."""

    def ready_info(self) -> EngineReady:
        """Return what the API process wants to know about the loaded model."""


def load_factory(name: str) -> Callable[[EngineConfig], SteppedEngine]:
    """Import `module:function`, the function that loads an engine.

    Raises:
        ConfigError: the name has another form or leads to nothing.
    """
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"engine factory is {name!r}; expected 'module:function' that can be imported ({error})"
        raise ConfigError(message) from error
    return cast("Callable[[EngineConfig], SteppedEngine]", function)


class EngineLoop:
    """Runs an engine until it is told to leave.

    Args:
        engine: the engine; only this object touches it.
        inbox: messages from the API process; filled by another thread.
        send: takes every message for the API process, called from the loop's thread.
    """

    def __init__(
        self, engine: SteppedEngine, inbox: queue.SimpleQueue[ToEngine], send: Callable[[FromEngine], None]
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._shutdown: Shutdown | None = None
        self._stats_due_s = 0.0

    def run(self) -> None:
        """Return after a Shutdown message: at once, or when the running requests have finished."""
        self._send_stats()
        while True:
            news = self._take_messages()
            if self._shutdown is not None and not (self._shutdown.drain and self._engine.has_work):
                self._tell(news)
                return
            if self._engine.has_work:
                news += self._step()
            self._tell(news)
            if time.monotonic() >= self._stats_due_s:
                self._send_stats()

    def _take_messages(self) -> list[Update]:
        """Handle what waits in the inbox; when there is nothing to compute, wait for it."""
        news: list[Update] = []
        while True:
            try:
                if self._engine.has_work or news or self._shutdown is not None:
                    message = self._inbox.get_nowait()
                else:
                    message = self._inbox.get(timeout=max(0.001, self._stats_due_s - time.monotonic()))
            except queue.Empty:
                return news
            news += self._handle(message)

    def _handle(self, message: ToEngine) -> list[Update]:
        if isinstance(message, AddRequest):
            return self._add(message)
        if isinstance(message, AbortRequest):
            update = self._engine.abort(message.request_id)
            return [] if update is None else [update]
        if isinstance(message, Vocabulary):
            self._engine.know_vocabulary(message)
            return []
        if self._shutdown is None or self._shutdown.drain:
            self._shutdown = message
        return []

    def _add(self, request: AddRequest) -> list[Update]:
        try:
            if self._shutdown is not None:
                message = "the engine is shutting down; ask another server"
                raise EngineUnavailable(message)  # noqa: TRY301 - refused like any other request
            self._engine.add_request(request)
        except (RequestError, Overloaded, EngineUnavailable) as error:
            return [refusal(request.request_id, error)]
        except Exception as error:  # noqa: BLE001 - whatever this request did, the process goes on for the others
            traceback.print_exc()
            reason = f"the engine failed when it took this request ({type(error).__name__}); see its log"
            return [Update(request_id=request.request_id, finish_reason="error", error=reason)]
        return []

    def _step(self) -> list[Update]:
        try:
            return self._engine.step()
        except Exception as error:  # noqa: BLE001 - whatever happened, the process goes on without these requests
            traceback.print_exc()
            return self._engine.fail_all(f"the engine failed in a step ({type(error).__name__}); see its log")

    def _tell(self, news: list[Update]) -> None:
        if news:
            self._send(Updates(updates=news))

    def _send_stats(self) -> None:
        stats = self._engine.stats()
        self._send(stats)
        interval_s = BUSY_STATS_INTERVAL_S if self._engine.has_work else IDLE_STATS_INTERVAL_S
        self._stats_due_s = time.monotonic() + interval_s
