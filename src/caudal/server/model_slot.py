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

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0


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
        num_working: leases.
        makes_room: another model has waited long enough: no new leases, so that this one can be unloaded.
        last_used_s: when the last of them was done.
        error: why the last load failed; None if it did not.
        num_failures: loads that failed since one went well, or since the file changed.
        retry_s: until then, requests are not worth another try.
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
        self.num_working = 0
        self.makes_room = False
        self.last_used_s = 0.0
        self.error: str | None = None
        self.num_failures = 0
        self.retry_s = 0.0

    @property
    def name(self) -> str:
        """The model's name."""
        return self.info.name

    @property
    def is_busy(self) -> bool:
        """Whether it may not be unloaded: somebody uses it, or its engine still works; waiting for it counts, too.

        While it makes room for another, those who only wait do not count.
        """
        num_users = self.num_working if self.makes_room else self.num_using
        return num_users > 0 or (self.running is not None and self.running.client.num_open > 0)

    def took(self, info: ServedModel) -> None:
        """Note what the model's file is now; another file deserves another try."""
        if (info.path, info.size_bytes, info.modified_s) != (
            self.info.path,
            self.info.size_bytes,
            self.info.modified_s,
        ):
            self.forgive()
        self.info = info

    def failed(self, error: str, now_s: float) -> None:
        """Note that a load failed: each failure in a row makes the pause before the next try twice as long."""
        self.error = error
        self.retry_s = now_s + min(_FIRST_PAUSE_S * 2 ** min(self.num_failures, 16), _LONGEST_PAUSE_S)
        self.num_failures += 1

    def forgive(self) -> None:
        """Forget that loads failed."""
        self.error = None
        self.num_failures = 0
        self.retry_s = 0.0

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Count a lease while the block lasts."""
        self.num_working += 1
        try:
            yield
        finally:
            self.num_working -= 1

    @contextmanager
    def in_use(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count a user while the block lasts."""
        self.num_using += 1
        try:
            yield
        finally:
            self.num_using -= 1
            self.last_used_s = clock()
