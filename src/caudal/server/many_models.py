"""A directory of models that are loaded when they are asked for, each in a process of its own.

One model is brought into memory at a time, so that what is free is known; idle ones make room for it. A load belongs
to the directory and not to whoever asked first: others may wait for the same one, and those who leave do not end it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from caudal.errors import CaudalError, EngineUnavailable, Overloaded
from caudal.server.model_directory import unknown_model
from caudal.server.model_events import LOADED, LOADING, UNLOADED, UNLOADING, ModelEvents, ModelStatus
from caudal.server.model_slot import ModelSlot
from caudal.server.problems import HTTPProblem
from caudal.server.residency import FOREVER, Residency, Resident, expired, next_expiry_s, who_leaves
from caudal.server.running_model import needed_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from caudal.server.loaded_model import LoadedModel
    from caudal.server.model_catalog import ModelCatalog
    from caudal.server.running_model import Memory, ModelStarter
    from caudal.server.settings import ServedModel

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0


class ManyModels:
    """See the module. Lives on one event loop.

    Args:
        catalog: the models that may be asked for.
        starter: brings one into memory.
        residency: who stays.
        memory: of this machine.
        first: the name of the model to load at the start; None to load nothing until somebody asks.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        starter: ModelStarter,
        residency: Residency,
        memory: Memory,
        first: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self.events = ModelEvents()
        self._catalog = catalog
        self._starter = starter
        self._residency = residency
        self._memory = memory
        self._clock = clock
        self._slots: dict[str, ModelSlot] = {}
        self._loading: ModelSlot | None = None
        self._num_waiting = 0
        self._news = asyncio.Event()
        self._reaper: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_leaving = False

    # What handlers ask.

    def served(self) -> Sequence[ServedModel]:
        """Return every model that may be asked for, the default first."""
        return self._catalog.models()

    def loaded(self) -> Sequence[LoadedModel]:
        """Return those that are in memory."""
        return [slot.running.model for slot in self._slots.values() if slot.running and slot.state == LOADED]

    def find(self, name: str | None) -> ServedModel | None:
        """Return the model that a name means; None if none does."""
        return self._catalog.find(name)

    async def refresh(self) -> None:
        """Look for new and changed files."""
        await self._catalog.refresh()

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[LoadedModel]:
        """Return a model for as long as the block lasts, loading it if it is not in memory.

        Raises:
            HTTPProblem: 404, the name is unknown; 500, it cannot be loaded.
            EngineUnavailable: it was not loaded in time, or there is no room for it now.
        """
        slot = await self._slot_of(name)
        with slot.in_use(self._clock):
            try:
                model = await self._wait_until_loaded(slot)
                with slot.leased():
                    yield model
            finally:
                asyncio.get_running_loop().call_soon(self._tell)  # once it is no longer in use

    async def load(self, name: str) -> ModelStatus:
        """Bring a model into memory and return what became of it, also if that failed just now.

        Raises what lease raises.
        """
        (await self._slot_of(name)).forgive()
        async with self.lease(name) as model:
            slot = self._slots[model.name]
        return self._status(slot)

    async def unload(self, name: str) -> ModelStatus:
        """Take a model out of memory: now if it is idle, else when the last of its requests has ended.

        Raises:
            HTTPProblem: 404, the name is unknown.
        """
        slot = self._slots.get(name)  # one in memory whose file has gone has no other way out
        if slot is None or slot.state == UNLOADED:
            slot = await self._slot_of(name)
        slot.keep_alive_s = 0.0
        if slot.running is not None and not slot.num_using:
            await asyncio.shield(self._begin_unload(slot))
        elif slot.unloading is not None:
            await asyncio.shield(slot.unloading)
        return self._status(slot)

    def keep(self, name: str, keep_alive_s: float) -> None:
        """Keep a loaded model for so long after its last use, until it is unloaded; see read_keep_alive.

        The first model, which the server was started for, stays at least as long as whoever started it said.
        """
        slot = self._slots.get(name)
        if slot is not None and slot.state in (LOADING, LOADED):
            least_s = self._keep_alive_of(slot.info) if name == self._first else 0.0
            slot.keep_alive_s = max(keep_alive_s, least_s)
            self._tell()

    def statuses(self) -> list[ModelStatus]:
        """Return every model's state, in the order of served(); those whose files are gone come last."""
        served = {info.name: info for info in self.served()}
        names = dict.fromkeys((*served, *(name for name, slot in self._slots.items() if slot.state != UNLOADED)))
        return [
            self._status(self._slots[name]) if name in self._slots else ModelStatus(name=name, error=served[name].error)
            for name in names
        ]

    @property
    def healthy(self) -> bool:
        """Whether the start is done and every model in memory answers."""
        return self._is_started and not self._is_leaving and not self.sick()

    def sick(self) -> Sequence[str]:
        """Return the models in memory that do not answer."""
        return [model.name for model in self.loaded() if not model.client.healthy]

    def close(self) -> None:
        """Do nothing: stop() ends what runs."""

    # What the launcher asks.

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return sum(slot.running.client.num_open for slot in self._slots.values() if slot.running)

    async def start(self) -> LoadedModel | None:
        """Load the model to begin with, if there is one, and take requests.

        Raises:
            CaudalError: it cannot be loaded.
        """
        self._reaper = asyncio.create_task(self._let_idle_leave(), name="idle models")
        if self._first is None:
            self._is_started = True
            return None
        slot = await self._slot_of(self._first)
        with slot.in_use(self._clock):
            await self._begin_load(slot)
        self._is_started = True
        return slot.running.model if slot.running else None

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for the open ones; return whether they all ended in time."""
        self._is_leaving = True
        for slot in self._slots.values():
            if slot.loading is not None:
                slot.loading.cancel()
        clients = [slot.running.client for slot in self._slots.values() if slot.running]
        return all(await asyncio.gather(*(client.drain(timeout_s) for client in clients)))

    async def stop(self) -> None:
        """End every process. Open requests fail with EngineUnavailable."""
        self._is_leaving = True
        found = [self._reaper, *(slot.loading for slot in self._slots.values())]
        tasks = [task for task in found if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(
            *(self._begin_unload(slot) for slot in self._slots.values() if slot.running or slot.unloading)
        )

    # Loading.

    async def _slot_of(self, name: str | None) -> ModelSlot:
        info = self.find(name)
        known = self._slots.get(info.name) if info is not None else None
        if known is not None and known.state != UNLOADED:
            return known
        await self.refresh()
        info = self.find(name)
        if info is None:
            raise unknown_model(name, self.served())
        slot = self._slots.setdefault(info.name, ModelSlot(info, self._keep_alive_of(info)))
        if slot.state == UNLOADED:
            slot.took(info)
        return slot

    def _keep_alive_of(self, info: ServedModel) -> float:
        return self._residency.first_keep_alive_s if info.name == self._first else self._residency.keep_alive_s

    async def _wait_until_loaded(self, slot: ModelSlot) -> LoadedModel:
        if not self._is_started:
            message = "the engine is starting; try again in a moment"
            raise EngineUnavailable(message)
        if slot.state == LOADED and slot.running is not None and not slot.makes_room:
            return slot.running.model
        if self._num_waiting >= self._residency.max_waiting:
            message = f"{self._num_waiting} requests already wait for a model to be loaded; try again later"
            raise Overloaded(message, retry_after_s=10.0)
        self._num_waiting += 1
        try:
            return await self._load_and_wait(slot)
        finally:
            self._num_waiting -= 1

    async def _load_and_wait(self, slot: ModelSlot) -> LoadedModel:
        due_s = self._clock() + self._residency.load_timeout_s
        while slot.state != LOADED or slot.running is None or slot.makes_room:
            if self._is_leaving:
                raise _leaving()
            if slot.state == UNLOADED and slot.info.error is not None:
                raise _not_loaded(slot.name, slot.info.error)
            if slot.state == UNLOADED and self._clock() < slot.retry_s:  # a try would make others leave for nothing
                raise _not_loaded(slot.name, slot.error)
            if slot.state == LOADED:  # it makes room: whoever waits here comes after the other model
                if self._clock() >= due_s:
                    raise self._too_late(slot)
                await self._wait_for_news(_LOOK_AGAIN_S)
                continue
            task = slot.unloading or slot.loading or self._begin_load(slot)
            done, _ = await asyncio.wait((task,), timeout=max(0.0, due_s - self._clock()))
            if not done:
                raise self._too_late(slot)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise _failure(slot, error)
        return slot.running.model

    def _begin_load(self, slot: ModelSlot) -> asyncio.Task[None]:
        self._set_state(slot, LOADING)
        slot.loading = asyncio.create_task(self._load(slot), name=f"load {slot.name}")
        slot.loading.add_done_callback(_retrieve)
        return slot.loading

    async def _load(self, slot: ModelSlot) -> None:
        try:
            await self._make_room(slot)
            began_s = self._clock()
            slot.running = await self._starter.start(slot.info)
            slot.forgive()
            log.info("loaded %s in %.1f s", slot.name, self._clock() - began_s)
        except EngineUnavailable as error:  # there was no room, or nobody waits: not the model's fault
            slot.error = str(error)
            raise
        except Exception as error:
            slot.failed(_reason(slot, error), self._clock())
            log.warning("could not load %s: %s", slot.name, error)
            raise
        finally:
            if self._loading is slot:
                self._loading = None
            slot.loading = None
            slot.last_used_s = self._clock()
            self._set_state(slot, UNLOADED if slot.running is None else LOADED)

    async def _make_room(self, slot: ModelSlot) -> None:
        """Wait for this model's turn and for room, and unload who makes it.

        After some time a model in use is asked to make room: it gets no new requests until this one is loaded, so that
        a model that is never idle does not keep others out for ever.
        """
        patient_until_s = self._clock() + self._residency.patience_s
        asked: ModelSlot | None = None
        try:
            while (leaving := self._who_leaves(slot)) is None:
                if not slot.num_using:
                    message = f"nobody waits for {slot.name} any more, and there is no room for it"
                    raise EngineUnavailable(message)
                if asked is None and self._clock() >= patient_until_s:
                    asked = self._ask_for_room()
                await self._wait_for_news(_LOOK_AGAIN_S)
        finally:
            if asked is not None:
                asked.makes_room = False
                self._tell()
        self._loading = slot
        for name in leaving:
            log.info("unloading %s to make room for %s", name, slot.name)
        unloads = [self._begin_unload(self._slots[name]) for name in leaving]
        await asyncio.gather(*map(asyncio.shield, unloads))  # to end this load must not end them half-way

    def _who_leaves(self, slot: ModelSlot) -> tuple[str, ...] | None:
        if self._loading is not None or any(each.unloading for each in self._slots.values()):
            return None  # what is free will be known when they are done
        needed = needed_bytes(slot.info, self._starter.config)
        return who_leaves(self._residents(), needed, self._memory.free_bytes(), self._residency.max_loaded)

    def _ask_for_room(self) -> ModelSlot | None:
        """Let the model that was loaded first make room; None if one does so already, or is leaving or coming."""
        if self._loading is not None or any(each.makes_room or each.unloading for each in self._slots.values()):
            return None
        loaded = [each for each in self._slots.values() if each.state == LOADED]
        oldest = min(loaded, key=lambda each: each.since, default=None)
        if oldest is not None:
            log.info("%s gets no new requests until it has made room for another model", oldest.name)
            oldest.makes_room = True
        return oldest

    def _residents(self) -> list[Resident]:
        return [
            Resident(
                name=slot.name,
                held_bytes=self._held_bytes(slot),
                in_use=slot.is_busy,
                last_used_s=slot.last_used_s,
                keep_alive_s=slot.keep_alive_s,
            )
            for slot in self._slots.values()
            if slot.state == LOADED
        ]

    def _held_bytes(self, slot: ModelSlot) -> int:
        process_id = slot.running.client.process_id if slot.running else None
        return self._memory.held_bytes(process_id) if process_id is not None else 0

    # Unloading.

    def _begin_unload(self, slot: ModelSlot) -> asyncio.Task[None]:
        if slot.unloading is None:
            self._set_state(slot, UNLOADING)
            slot.unloading = asyncio.create_task(self._unload(slot), name=f"unload {slot.name}")
        return slot.unloading

    async def _unload(self, slot: ModelSlot) -> None:
        running, slot.running = slot.running, None
        try:
            if running is not None:
                await running.stop()
        finally:
            slot.unloading = None
            slot.keep_alive_s = self._keep_alive_of(slot.info)
            self._set_state(slot, UNLOADED)

    async def _let_idle_leave(self) -> None:
        while True:
            residents = self._residents()
            watches = False  # an engine works on for somebody who holds no lease, and will not say when it is done
            for slot in self._slots.values():
                if slot.is_busy and not slot.num_using:
                    slot.last_used_s, watches = self._clock(), True
            for name in expired(residents, self._clock()):
                log.info("unloading %s, which nobody has used for a while", name)
                self._begin_unload(self._slots[name])
            rest = [each for each in residents if self._slots[each.name].state == LOADED]
            due_s = next_expiry_s(rest)
            if watches:
                due_s = min(due_s, self._clock() + _LOOK_AGAIN_S)
            await self._wait_for_news(None if due_s == FOREVER else max(0.0, due_s - self._clock()))

    # News.

    def _set_state(self, slot: ModelSlot, state: str) -> None:
        slot.state = state
        slot.since = time.time()
        self.events.publish(self._status(slot))
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _wait_for_news(self, timeout_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # wait_for would lose a cancellation that comes with the news
                await self._news.wait()

    def _status(self, slot: ModelSlot) -> ModelStatus:
        client = slot.running.client if slot.running else None
        expires_s = FOREVER if slot.is_busy or slot.state != LOADED else slot.last_used_s + slot.keep_alive_s
        return ModelStatus(
            name=slot.name,
            state=slot.state,
            since=slot.since,
            expires_at=None if expires_s == FOREVER else time.time() + expires_s - self._clock(),
            in_use=slot.num_using,
            held_bytes=self._held_bytes(slot),
            max_model_len=client.ready.max_model_len if client and client.ready else None,
            process_id=client.process_id if client else None,
            healthy=client is not None and client.healthy,
            error=slot.error or slot.info.error,
        )

    def _too_late(self, slot: ModelSlot) -> EngineUnavailable:
        others = [each.name for each in self._slots.values() if each.state == LOADED]
        if self._loading is slot:
            return EngineUnavailable(f"the model {slot.name!r} is still being loaded; try again", retry_after_s=10.0)
        if slot.state == LOADED:
            message = f"the model {slot.name!r} makes room for another one now; try again"
            return EngineUnavailable(message, retry_after_s=10.0)
        busy = ", ".join(repr(name) for name in others) or "another model"
        message = f"there is no room for the model {slot.name!r} now: {busy} in memory, in use; try again later"
        return EngineUnavailable(message, retry_after_s=10.0)


def _leaving() -> EngineUnavailable:
    return EngineUnavailable("the server is shutting down; ask another one or try again later")


def _not_loaded(name: str, reason: object) -> HTTPProblem:
    message = f"the model {name!r} cannot be loaded: {reason}; the others are not affected"
    return HTTPProblem(500, message, code="model_load_failed", parameter="model")


def _reason(slot: ModelSlot, error: BaseException) -> str:
    """Return what is wrong without the file's place, which is nobody's business."""
    return str(error).removeprefix(f"{slot.info.path}: ")


def _failure(slot: ModelSlot, error: BaseException) -> Exception:
    """Return what one of those who waited for a load is told of its failure."""
    if isinstance(error, EngineUnavailable):
        return EngineUnavailable(str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, CaudalError | OSError):
        return _not_loaded(slot.name, _reason(slot, error))
    log.error("loading %s failed in the server", slot.name, exc_info=error)
    return _not_loaded(slot.name, "the server failed at it; the reason is in its log")


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a load's failure, so that asyncio does not complain that nobody waited for it."""
    if not task.cancelled():
        task.exception()
