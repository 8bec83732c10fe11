"""What the models of a server do, as news for whoever watches: /models/sse, a page, a test."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

UNLOADED, LOADING, LOADED, UNLOADING = STATES = ("unloaded", "loading", "loaded", "unloading")
MAX_UNREAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A model now.

    Attributes:
        name: its own.
        state: one of STATES.
        since: Unix time of the last change of state.
        expires_at: Unix time at which it leaves memory if nobody uses it; None if it is kept for ever, in use or not
            in memory.
        in_use: requests that work with it or wait for it.
        held_bytes: of memory; 0 if it is not there.
        max_model_len: longest prompt plus answer, once it is loaded.
        process_id: of its engine, if there is one.
        healthy: whether it answers, if it is loaded.
        error: why the last attempt to load it failed, or why its file cannot be used; None otherwise.
    """

    name: str
    state: str = UNLOADED
    since: float = 0.0
    expires_at: float | None = None
    in_use: int = 0
    held_bytes: int = 0
    max_model_len: int | None = None
    process_id: int | None = None
    healthy: bool = False
    error: str | None = None


class ModelEvents:
    """Tells every subscriber each change. One who does not read loses the oldest news, and holds nobody up."""

    def __init__(self) -> None:
        self._readers: set[asyncio.Queue[ModelStatus]] = set()

    def publish(self, status: ModelStatus) -> None:
        """Tell a change."""
        for reader in self._readers:
            if reader.full():
                reader.get_nowait()
            reader.put_nowait(status)

    @contextmanager
    def subscribe(self) -> Iterator[asyncio.Queue[ModelStatus]]:
        """Give a queue that every change is put into while the block lasts."""
        reader: asyncio.Queue[ModelStatus] = asyncio.Queue(MAX_UNREAD)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
