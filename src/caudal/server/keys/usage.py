"""What each key used, by model and day: counted in memory, written in batches by a thread.

A disk that is full or read-only fails no request: what could not be written is kept and written later. A crash loses
what was counted since the last batch, at most about a second.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.server.keys.key_store import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

WRITE_EVERY_S = 0.5
RETRY_S = 2.0


class Usage(msgspec.Struct, kw_only=True):
    """Counts. An answer's tokens count when it has ended, however it ended.

    Attributes:
        requests: requests for inference, those that were refused too.
        prompt_tokens: cached ones too; a prompt with several answers counts once.
        cached_tokens: prompt tokens that came from the prefix cache.
        generated_tokens: of all answers.
        errors: requests that ended with a status from 400 on, or failed in mid stream; not those refused with 429,
            nor those whose client went away.
        rate_limited: requests refused with 429.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    errors: int = 0
    rate_limited: int = 0

    def add(self, other: Usage) -> None:
        """Add other counts to these."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTS = Usage.__struct_fields__


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One key's use of one model on one day (YYYY-MM-DD, UTC). A key that is not in the database has no name."""

    day: str
    key_id: str
    key_name: str
    department: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    errors: int
    rate_limited: int


def day_of(unix_s: float) -> str:
    """Return a day of UTC as YYYY-MM-DD."""
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))


def read_usage(
    db: sqlite3.Connection, *, first: str = "", last: str = "9999-12-31", key_id: str | None = None
) -> list[UsageRow]:
    """Return what was used on the days from `first` to `last`, by every key or one of them, in order of days."""
    sums = ", ".join(f"usage.{name}" for name in COUNTS)
    rows = db.execute(
        f"SELECT day, key_id, coalesce(name, ''), coalesce(department, ''), model, {sums} "  # noqa: S608 - our own names
        "FROM usage LEFT JOIN keys ON keys.id = key_id "
        "WHERE day BETWEEN :first AND :last AND (:key_id IS NULL OR key_id = :key_id) ORDER BY day, key_id, model",
        {"first": first, "last": last, "key_id": key_id},
    )
    names = UsageRow.__struct_fields__
    return [UsageRow(**dict(zip(names, row, strict=True))) for row in rows]


def used_today(db: sqlite3.Connection, day: str) -> dict[str, tuple[int, int]]:
    """Return, by key, what counts against limits of a day: requests and tokens."""
    rows = db.execute(
        "SELECT key_id, sum(requests - rate_limited), sum(prompt_tokens + generated_tokens) "
        "FROM usage WHERE day = ? GROUP BY key_id",
        (day,),
    )
    return {key_id: (requests, tokens) for key_id, requests, tokens in rows}


class UsageLedger:
    """Counts and writes. The thread starts with the first count.

    Args:
        database: a KeyStore's.
        clock: Unix time in seconds.
    """

    def __init__(self, database: Path, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], Usage] = {}
        self._last_used: dict[str, float] = {}
        self._news = threading.Event()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False

    def add(self, key_id: str, model: str, usage: Usage) -> None:
        """Count something of today."""
        now = self._clock()
        with self._lock:
            self._counts.setdefault((day_of(now), key_id, model), Usage()).add(usage)
            self._last_used[key_id] = now
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_on, name="usage", daemon=True)
            self._thread.start()
        self._news.set()

    def flush(self) -> bool:
        """Write what was counted; return whether that went well."""
        with self._lock:
            counts, self._counts = self._counts, {}
            last_used, self._last_used = self._last_used, {}
        if not counts and not last_used:
            return True
        try:
            _write(self._database, counts, last_used)
        except (sqlite3.Error, OSError) as error:
            with self._lock:
                for key, usage in counts.items():
                    self._counts.setdefault(key, Usage()).add(usage)
                self._last_used = {**last_used, **self._last_used}
            if not self._failing:
                log.error("usage cannot be written: %s; it is kept in memory and tried again", error)  # noqa: TRY400
            self._failing = True
            return False
        if self._failing:
            log.warning("usage is written again")
        self._failing = False
        return True

    def close(self) -> None:
        """Write the rest and stop the thread."""
        self._leaving.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _write_on(self) -> None:
        while not self._leaving.is_set():
            self._news.wait()
            self._leaving.wait(WRITE_EVERY_S)
            self._news.clear()
            if not self.flush():
                self._news.set()
                self._leaving.wait(RETRY_S)


def _write(database: Path, counts: dict[tuple[str, str, str], Usage], last_used: dict[str, float]) -> None:
    names = ("day", "key_id", "model", *COUNTS)
    rows: list[tuple[Any, ...]] = [(*key, *(getattr(usage, name) for name in COUNTS)) for key, usage in counts.items()]
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)
    db = connect(database)
    try:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            f"INSERT INTO usage ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "  # noqa: S608 - our own names
            f"ON CONFLICT (day, key_id, model) DO UPDATE SET {added}",
            rows,
        )
        db.executemany("INSERT OR REPLACE INTO key_use VALUES (?, ?)", list(last_used.items()))
        db.execute("COMMIT")
    finally:
        db.close()
