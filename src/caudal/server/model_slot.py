"""The place of one model in a directory: in memory or not, by whom it is used, and what is being done to it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from caudal.server.model_events import UNLOADED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from caudal.server.running_model import RunningModel
    from caudal.server.settings import ServedModel


class ModelSlot:
    """State without behaviour, but for counting users.

    Args:
        info: how the model is known; of the loaded version while it is loaded.
        keep_alive_s: how long it is kept after its last use, until it is unloaded.

    Attributes:
        state: one of model_events.STATES.
        since: Unix time of the last change of state.
        running: its process, while there is one that takes requests.
        loading, unloading: the task that does so.
        num_using: leases, and those who wait for one.
        last_used_s: when the last of them was done.
        error: why the last load failed; None if it did not.
    """

    def __init__(self, info: ServedModel, keep_alive_s: float) -> None:
        self.info = info
        self.keep_alive_s = keep_alive_s
        self.state = UNLOADED
        self.since = time.time()
        self.running: RunningModel | None = None
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.num_using = 0
        self.last_used_s = 0.0
        self.error: str | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.info.name

    @property
    def is_busy(self) -> bool:
        """Whether it may not be unloaded: somebody uses it, waits for it, or its engine still works."""
        return self.num_using > 0 or (self.running is not None and self.running.client.num_open > 0)

    @contextmanager
    def in_use(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count a user while the block lasts."""
        self.num_using += 1
        try:
            yield
        finally:
            self.num_using -= 1
            self.last_used_s = clock()
