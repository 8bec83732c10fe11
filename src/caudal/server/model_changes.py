"""Changes of the models that a server has, asked for by its clients: pulls, copies, deletions.

Two who pull the same model share one download, and few downloads go on at a time. What has been changed is listed
before the client is told that it is done.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from caudal.errors import EngineUnavailable, LibraryError, Overloaded
from caudal.server.shared_pull import SharedPull

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caudal.server.model_directory import ModelDirectory
    from caudal.server.settings import ServedModel
    from caudal.server.shared_pull import Begin, Progress

MAX_PULLS = 2
_RETRY_AFTER_S = 30.0
_ENDING_RETRY_AFTER_S = 2.0


class Library(Protocol):
    """Where the models are. Everything here may block and raises LibraryError; see hub.model_library.ModelLibrary."""

    def pulled_name(self, name: str) -> str:
        """Return what a model is listed as once it is pulled. Does not block."""

    def copy_name(self, name: str) -> str:
        """Return what a copy is listed as. Does not block."""

    def check_ours(self, name: str, path: Path) -> None:
        """Raise LibraryError if a model may not be changed. Does not block."""

    def pull(self, name: str, begin: Begin, progress: Progress) -> None:
        """Fetch a model."""

    def copy(self, name: str, path: Path, destination: str) -> None:
        """Give a model a further name."""

    def delete(self, name: str, path: Path) -> None:
        """Delete a model."""


class ModelChanges:
    """See the module. Lives on one event loop.

    Args:
        library: changes the files.
        models: who serves them.
        look_again: sees what has changed, now.
    """

    def __init__(self, library: Library, models: ModelDirectory, look_again: Callable[[], Awaitable[None]]) -> None:
        self._library = library
        self._models = models
        self._look_again = look_again
        self._pulls: dict[str, SharedPull] = {}
        self._is_leaving = False

    def pulled_name(self, name: str) -> str:
        """Return what a model is listed as once it is pulled. Raises LibraryError."""
        return self._library.pulled_name(name)

    def copy_name(self, name: str) -> str:
        """Return what a copy is listed as. Raises LibraryError."""
        return self._library.copy_name(name)

    def pull(self, name: str) -> SharedPull:
        """Begin to fetch a model, or join those who do. Whoever asks must watch what is returned, at once.

        Raises:
            LibraryError: it is no name.
            Overloaded: too many are being fetched, or this one is just being ended.
            EngineUnavailable: the server leaves.
        """
        listed = self._library.pulled_name(name)
        if self._is_leaving:
            message = "the server is shutting down; ask another one or try again later"
            raise EngineUnavailable(message)
        pull = self._pulls.get(listed.casefold())
        if pull is not None and not pull.is_ending:
            return pull
        if pull is not None:
            message = f"an earlier pull of {listed!r} is just being ended; try again"
            raise Overloaded(message, retry_after_s=_ENDING_RETRY_AFTER_S)
        if len(self._pulls) >= MAX_PULLS:
            message = f"{len(self._pulls)} models are being pulled already; pull {listed!r} when one of them is done"
            raise Overloaded(message, retry_after_s=_RETRY_AFTER_S)
        pull = self._pulls[listed.casefold()] = SharedPull()
        pull.task = asyncio.create_task(self._carry_out(pull, name, listed), name=f"pull {listed}")
        pull.task.add_done_callback(_retrieve)
        return pull

    async def copy(self, source: ServedModel, destination: str) -> None:
        """Give a model a further name.

        Raises:
            LibraryError: it could not be done.
        """
        name = self._library.copy_name(destination)
        self._library.check_ours(source.name, Path(source.path))
        await self._models.refresh()
        other = self._models.find(name)
        if other is not None:
            if not await asyncio.to_thread(_same_file, other, source):  # whose name a key may not know
                message = f"{name!r} already means a model; delete that first, or take another name"
                raise LibraryError(message, "exists")
            if other.name == name:
                return
        await asyncio.to_thread(self._library.copy, source.name, Path(source.path), name)
        await self._look_again()

    async def delete(self, model: ServedModel) -> None:
        """Delete a model, and unload it: at once if it is idle, else when the last of its requests has ended.

        Raises:
            LibraryError: it could not be done.
        """
        try:
            await asyncio.to_thread(self._library.delete, model.name, Path(model.path))
        finally:
            await self._look_again()
        # Only now that nobody can ask for it any more: it would be loaded again.
        if any(status.name == model.name for status in self._models.statuses()):
            await self._models.unload(model.name)

    def leave(self) -> None:
        """End every pull; begin no more."""
        self._is_leaving = True
        for pull in self._pulls.values():
            pull.leave()

    async def _carry_out(self, pull: SharedPull, name: str, listed: str) -> None:
        try:
            await pull.run(partial(self._library.pull, name))
            await self._look_again()
        finally:
            del self._pulls[listed.casefold()]


def _same_file(one: ServedModel, other: ServedModel) -> bool:
    try:
        return os.path.samefile(one.path, other.path)  # noqa: PTH121 - both are names
    except OSError:
        return False


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a failure, so that asyncio does not complain when nobody watched to the end."""
    if not task.cancelled():
        task.exception()
