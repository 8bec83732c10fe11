"""The models that an app serves, by name. A lease keeps a model loaded while somebody works with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from caudal.server.loaded_model import LoadedModel
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

    @property
    def healthy(self) -> bool:
        """Whether every model that should answer does."""

    def close(self) -> None:
        """Free what the directory itself holds."""


def unknown_model(name: str | None, served: Sequence[ServedModel]) -> HTTPProblem:
    """Return the 404 that OpenAI's API gives for a model that is not served."""
    names = ", ".join(repr(model.name) for model in served[:8])
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

    @property
    def healthy(self) -> bool:
        """Whether the model answers."""
        return self._model.client.healthy

    def close(self) -> None:
        """Stop the tokenizing thread."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
