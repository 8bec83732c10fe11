"""The models that an app serves, by name. A lease keeps a model loaded while somebody works with it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from caudal.server.loaded_model import LoadedModel
from caudal.server.model_events import LOADED, LOADING, ModelEvents, ModelStatus
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from caudal.engine.engine_client import Engines
    from caudal.server.metrics import ServerMetrics
    from caudal.server.settings import ServedModel
    from caudal.server.tokenizer_port import ServedTokenizer


class ModelDirectory(Protocol):
    """What the handlers ask of the models."""

    def served(self) -> Sequence[ServedModel]:
        """Return every model that may be asked for, the default first."""

    def loaded(self) -> Sequence[LoadedModel]:
        """Return those that are in memory."""

    def lease(self, name: str | None) -> AbstractAsyncContextManager[LoadedModel]:
        """Return a model for as long as the block lasts, loading it if it is not in memory. No name is the default.

        Raises:
            HTTPProblem: 404, the name is unknown.
            CaudalError: it cannot be loaded.
        """

    def find(self, name: str | None) -> ServedModel | None:
        """Return the model that a name means, of those that refresh() has seen; None if none does."""

    async def refresh(self) -> None:
        """Look for models that have come, gone or changed."""

    async def load(self, name: str) -> ModelStatus:
        """Bring a model into memory and return what became of it. Raises what lease raises."""

    async def unload(self, name: str) -> ModelStatus:
        """Take a model out of memory, at once if it is idle, and return what became of it. Its file may have gone.

        Raises:
            HTTPProblem: 404, the name is unknown; 400, the model cannot be unloaded.
        """

    def keep(self, name: str, keep_alive_s: float) -> None:
        """Keep a loaded model for so long after its last use; see residency.read_keep_alive."""

    def statuses(self) -> Sequence[ModelStatus]:
        """Return the state of every model, in the order of served()."""

    @property
    def events(self) -> ModelEvents:
        """Every change of a model's state."""

    @property
    def healthy(self) -> bool:
        """Whether every model that should answer does."""

    def sick(self) -> Sequence[str]:
        """Return the names of those that should answer and do not."""

    def close(self) -> None:
        """Free what the directory itself holds."""


def unknown_model(name: str | None, served: Sequence[ServedModel]) -> HTTPProblem:
    """Return the 404 that OpenAI's API gives for a model that is not served."""
    names = ", ".join(repr(model.name) for model in served[:8]) or "no model"
    message = f"the model {name!r} is not served here; this server has {names} (see /v1/models)"
    return HTTPProblem(404, message, code="model_not_found", parameter="model")


class OneModel:
    """A directory of one model that somebody else starts and stops.

    Args:
        client: its engine.
        tokenizer: its tokenizer.
        info: how clients name it.
        metrics: where its requests are counted.
    """

    def __init__(self, client: Engines, tokenizer: ServedTokenizer, info: ServedModel, metrics: ServerMetrics) -> None:
        self.events = ModelEvents()
        self._since = time.time()
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")
        self._model = LoadedModel(
            client, tokenizer, info, metrics=metrics.watch(info.name, client), tokenizing=self._tokenizing
        )

    def served(self) -> Sequence[ServedModel]:
        """Return the model."""
        return (self._model.info,)

    def loaded(self) -> Sequence[LoadedModel]:
        """Return the model."""
        return (self._model,)

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[LoadedModel]:
        """Return the model, if that is its name."""
        if not self._model.info.answers_to(name):
            raise unknown_model(name, self.served())
        yield self._model

    def find(self, name: str | None) -> ServedModel | None:
        """Return the model, if that is its name."""
        return self._model.info if self._model.info.answers_to(name) else None

    async def refresh(self) -> None:
        """Do nothing: there is nothing to look for."""

    async def load(self, name: str) -> ModelStatus:
        """Return the model's state."""
        async with self.lease(name):
            return self.statuses()[0]

    async def unload(self, name: str) -> ModelStatus:
        """Refuse: whoever started the model stops it."""
        async with self.lease(name):
            message = f"the model {name!r} cannot be unloaded: this server has no other and does not start it itself"
            raise HTTPProblem(400, message, code="model_not_unloadable", parameter="model")

    def keep(self, name: str, keep_alive_s: float) -> None:
        """Do nothing: the model stays."""

    def statuses(self) -> Sequence[ModelStatus]:
        """Return the model's state."""
        client, length = self._model.client, self._model.max_model_len
        status = ModelStatus(
            name=self._model.name,
            state=LOADED if client.ready else LOADING,
            since=self._since,
            in_use=client.num_open,
            max_model_len=length,
            healthy=client.healthy,
        )
        return (status,)

    @property
    def healthy(self) -> bool:
        """Whether the model answers."""
        return self._model.client.healthy

    def sick(self) -> Sequence[str]:
        """Return the model's name, if it does not answer."""
        return () if self.healthy else (self._model.name,)

    def close(self) -> None:
        """Stop the tokenizing thread."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
