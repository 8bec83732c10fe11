"""The audit log of a running server: records go in on the event loop, a thread writes them in order.

A disk that is full stops nothing, unless the log is strict: then requests are refused until it can be written again.
Records wait in memory meanwhile; when too many wait, further ones are lost, and the log says how many.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.server.audit.audit_files import append, remove_older

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_BATCH = 500
RETRY_S = 1.0
DAY_S = 86_400


class AuditLog:
    """Writes records. The thread starts with the first one.

    Args:
        state_dir: where the files go.
        retention_days: older files are removed.
        strict: see `refuses`; lines are also waited for until the disk has them.
        clock: Unix time in seconds.
    """

    def __init__(
        self, state_dir: Path, *, retention_days: int, strict: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._state_dir = state_dir
        self._retention_days = retention_days
        self._strict = strict
        self._clock = clock
        self._waiting: deque[tuple[dict[str, Any], int]] = deque()
        self._waiting_bytes = 0
        self._num_lost = 0
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._swept = ""

    @property
    def refuses(self) -> bool:
        """Whether requests must wait: the log is strict, and cannot be written, or not as fast as they come."""
        return self._strict and (self._failing or self._num_lost > 0 or len(self._waiting) >= MAX_WAITING)

    def add(self, record: dict[str, Any]) -> None:
        """Take a record; its `time` is set here. Long values come encoded, as msgspec.Raw."""
        num_bytes = sum(memoryview(value).nbytes for value in record.values() if isinstance(value, msgspec.Raw))
        with self._lock:
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + num_bytes > MAX_WAITING_BYTES:
                self._num_lost += 1
            else:
                self._waiting_bytes += num_bytes
                self._waiting.append(({"time": iso_time(self._clock()), **record}, num_bytes))
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_on, name="audit", daemon=True)
            self._thread.start()
        self._news.set()

    def close(self) -> None:
        """Write the rest, if that is possible, and stop the thread."""
        self._leaving.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        while self._has_news and self._write_batch():
            pass

    @property
    def _has_news(self) -> bool:
        return bool(self._waiting or self._num_lost)

    def _write_on(self) -> None:
        while not self._leaving.is_set():
            self._news.wait()
            self._news.clear()
            while self._has_news and not self._leaving.is_set():
                if not self._write_batch():
                    self._leaving.wait(RETRY_S)

    def _write_batch(self) -> bool:
        """Write what waits, oldest first; return whether that went well."""
        with self._lock:
            waiting = [record for record, _ in islice(self._waiting, MAX_BATCH)]
            num_lost = self._num_lost
        now = iso_time(self._clock())
        day = (waiting[0]["time"] if waiting else now)[:10]
        # Up to the first record of another day, and no further: the clock may go back over midnight and return.
        batch = list(takewhile(lambda record: record["time"].startswith(day), waiting))
        lost = [{"time": now, "event": "lost", "records": num_lost}] if num_lost else []
        try:
            append(self._state_dir, day, [*batch, *lost], durable=self._strict)
        except OSError as error:
            if not self._failing:
                log.error("the audit log cannot be written: %s; it is tried again every second", error)  # noqa: TRY400
            self._failing = True
            return False
        with self._lock:
            self._waiting_bytes -= sum(self._waiting.popleft()[1] for _ in batch)
            self._num_lost -= num_lost
        if self._failing:
            log.warning("the audit log is written again")
        self._failing = False
        self._sweep(day)
        return True

    def _sweep(self, day: str) -> None:
        """Remove old files, once a day."""
        if day == self._swept:
            return
        self._swept = day
        first_day = iso_time(self._clock() - self._retention_days * DAY_S)[:10]
        try:
            removed = remove_older(self._state_dir, first_day)
        except OSError as error:
            log.warning("old files of the audit log cannot be removed: %s", error)
            return
        if removed:
            self.add({"event": "retention", "removed": removed})


def iso_time(unix_s: float) -> str:
    """Return a time as 2026-11-30T20:45:11.123Z."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))
    return f"{whole}.{int(unix_s % 1 * 1000):03d}Z"
