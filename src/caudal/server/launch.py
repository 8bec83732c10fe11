"""From a configuration to a running server, and back to nothing: listen, load, serve, drain, leave.

The port is taken before the model is loaded, so that a port in use is known at once; /health says 503 meanwhile.
The first SIGTERM or SIGINT stops the listening and lets open requests finish for `drain_s` seconds; those that do not
are ended with an error body. The second signal leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from caudal.checkpoint import open_checkpoint
from caudal.engine.engine_process import DEFAULT_ENGINE
from caudal.engine.kv_plan import free_memory_bytes
from caudal.errors import CheckpointError, ConfigError
from caudal.hub.model_files import ModelFiles
from caudal.hub.model_library import ModelLibrary
from caudal.server.app import app_of
from caudal.server.context import ServerContext
from caudal.server.http_protocol import BoundedProtocol
from caudal.server.keys.key_store import KeyStore
from caudal.server.many_models import ManyModels
from caudal.server.metrics import ServerMetrics
from caudal.server.model_catalog import ModelCatalog
from caudal.server.model_changes import ModelChanges
from caudal.server.model_facts import ModelFacts, model_facts
from caudal.server.running_model import Memory, ModelStarter
from caudal.server.settings import LOOPBACK_HOSTS, ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from starlette.applications import Starlette

    from caudal.config import EngineConfig
    from caudal.hub.model_files import ModelFile
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.residency import Residency
    from caudal.server.running_model import LoadTokenizer
    from caudal.server.tokenizer_port import ServedTokenizer

log = logging.getLogger(__name__)

_LAST_RESORT_S = 5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class ModelSources:
    """Which models a server has.

    Attributes:
        named: models and their files, the first of which is loaded at the start.
        folder: models in it are loaded when they are asked for; None for none.
        aliases: further names -> models.
        manages: clients may change the models in the folder.
    """

    named: tuple[tuple[ServedModel, Path], ...] = ()
    folder: Path | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    manages: bool = False

    def library(self) -> ModelLibrary | None:
        """Return what changes the models of the folder; None if clients may not.

        Raises:
            ConfigError: there is no folder to change them in.
        """
        if not self.manages:
            return None
        if self.folder is None:
            message = "--manage-models lets clients change the models in a folder, and there is none; give --models-dir"
            raise ConfigError(message)
        return ModelLibrary(self.folder, {model.name: path for model, path in self.named})

    def catalog(self) -> ModelCatalog:
        """Return the models that there are.

        Raises:
            ConfigError: there is none, the folder is none, or an alias is for none.
        """
        if self.folder is not None and not self.folder.is_dir():
            message = f"--models-dir is {str(self.folder)!r}, which is no folder; give one with models"
            raise ConfigError(message)
        files = ModelFiles([(model.name, path) for model, path in self.named], self.folder, describe=model_facts)
        catalog = ModelCatalog(lambda: self._served(files), self.aliases)
        catalog.look_now()
        return catalog

    def _served(self, files: ModelFiles) -> list[ServedModel]:
        named = {model.name: model for model, _ in self.named}
        return [_described(file, named.get(file.name)) for file in files.look()]


def _described(file: ModelFile, named: ServedModel | None) -> ServedModel:
    """Return a model with what its file says; `named` is what the command line says, if it names it."""
    model = named or ServedModel(name=file.name, created=int(file.modified_s))
    facts = file.facts.description or ModelFacts()
    return replace(
        model,
        path=str(file.path),
        size_bytes=file.size_bytes,
        modified_s=file.modified_s,
        context_length=file.facts.context_length,
        kv_bytes_per_token=file.facts.kv_bytes_per_token,
        error=file.facts.error,
        facts=facts if model.chat_template is None else replace(facts, chat_template=model.chat_template),
    )


def serve(config: EngineConfig, settings: ServerSettings, sources: ModelSources, residency: Residency) -> None:
    """Serve models until a signal comes.

    Raises:
        ConfigError: the address cannot be used, or is open to others without a key.
        CheckpointError: the first model cannot be used.
        CaudalError: its engine did not start.
    """
    check_exposure(settings)
    library = sources.library()
    with listen(settings) as listener:
        first = sources.named[0][0].name if sources.named else None
        catalog = sources.catalog()
        broken = next((model for model in catalog.models() if model.name == first and model.error), None)
        if broken is not None:
            raise CheckpointError(str(broken.error), path=broken.path)
        run_server(listener, settings, catalog, EngineSource(config=config), residency, first, library)


def load_served_tokenizer(path: str, chat_template: str | None = None) -> ServedTokenizer:
    """Return the tokenizer of a model, with another chat template than its own if one is given.

    Raises:
        CheckpointError: the model, or its tokenizer, cannot be used.
    """
    from caudal.tokenizer.load import load_tokenizer  # noqa: PLC0415 - heavy, and not needed before a model is

    with open_checkpoint(path) as checkpoint:
        return load_tokenizer(checkpoint, chat_template=chat_template)


def check_exposure(settings: ServerSettings) -> None:
    """Raise ConfigError for a server that others can reach and nothing guards, unless that was asked for."""
    if settings.host in LOOPBACK_HOSTS or settings.api_keys or settings.insecure_no_key:
        return
    if settings.state_dir is not None and KeyStore(settings.state_dir).list():
        return
    message = (
        f"host is {settings.host!r}, which other machines can reach, and there is no API key; make one with `caudal "
        "keys create NAME`, add --api-key KEY, "
        "listen on 127.0.0.1, or say --insecure-no-key if anybody may use this server"
    )
    raise ConfigError(message)


def listen(settings: ServerSettings) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: the port is taken, or the host is not one of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot listen on {settings.host} port {settings.port}: {reason}; choose another with --port"
        raise ConfigError(message) from error


@dataclass(frozen=True, kw_only=True)
class EngineSource:
    """How engines and tokenizers are made.

    Attributes:
        config: of every engine, but for the path of its model.
        factory: as EngineClient takes it.
        load_tokenizer: as ModelStarter takes it.
    """

    config: EngineConfig
    factory: str = DEFAULT_ENGINE
    load_tokenizer: LoadTokenizer = load_served_tokenizer


def run_server(
    listener: socket.socket,
    settings: ServerSettings,
    catalog: ModelCatalog,
    engines: EngineSource,
    residency: Residency,
    first: str | None,
    library: ModelLibrary | None = None,
) -> None:
    """Serve on a listening socket until a signal comes. The first model, if there is one, is loaded at once.

    With a library, clients may change the models.

    Raises:
        CaudalError: what kept that model from being loaded.
    """
    metrics = ServerMetrics(per_key=settings.metrics_per_key)
    starter = ModelStarter(
        config=engines.config,
        load_tokenizer=engines.load_tokenizer,
        engine_factory=engines.factory,
        metrics=metrics,
    )
    models = ManyModels(catalog, starter, residency, Memory(free_bytes=free_memory_bytes), first)
    changes = None if library is None else ModelChanges(library, models, catalog.look_again)
    context = ServerContext(models, settings, metrics, changes)
    server = _Server(_uvicorn_config(app_of(context), settings))
    factory = server.config.get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_Service(server, models, listener, context).run())


def _uvicorn_config(app: Starlette, settings: ServerSettings) -> uvicorn.Config:
    protocol = partial(BoundedProtocol, max_head_bytes=settings.max_head_bytes, head_timeout_s=settings.head_timeout_s)
    return uvicorn.Config(
        app,
        http=cast("Any", protocol),
        log_config=None,  # the process's logging is the command line's business
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_s) + _LAST_RESORT_S,
    )


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: a signal also concerns the engine."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Service:
    """The HTTP server and the models, started and stopped together."""

    def __init__(self, server: _Server, models: ManyModels, listener: socket.socket, context: ServerContext) -> None:
        self._server = server
        self._models = models
        self._listener = listener
        self._settings = context.settings
        self._changes = context.changes
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Load, serve, and return when a signal has ended it."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        loading = asyncio.create_task(self._models.start())
        try:
            await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and not loading.cancelled() and loading.exception() is None:
                self._announce(loading.result())
                await serving
        finally:
            self._server.should_exit = True
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await self._models.stop()
            await asyncio.gather(serving, return_exceptions=True)
            if self._draining is not None:
                await self._draining
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        with suppress(asyncio.CancelledError):
            serving.result()
            if self._draining is None:  # a load that a signal has ended is no failure
                loading.result()

    def _on_signal(self) -> None:
        if self._server.should_exit:
            self._server.force_exit = True
            return
        self._server.should_exit = True
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Let open requests finish, and end those that take too long."""
        if self._changes is not None:
            self._changes.leave()
        if self._models.num_open:
            log.warning("finishing %d open requests; a second signal leaves at once", self._models.num_open)
        waiting = asyncio.create_task(self._models.drain(self._settings.drain_s))
        while not waiting.done() and not self._server.force_exit:
            await asyncio.wait((waiting,), timeout=0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await self._models.stop()

    def _announce(self, first: LoadedModel | None) -> None:
        host, port = self._listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        ready = None if first is None else first.client.ready
        cache = "" if ready is None else f", KV cache {ready.kv_dtype}"
        print(  # noqa: T201
            f"Caudal is ready on http://{host}:{port} (OpenAI API under /v1){cache}", file=sys.stderr, flush=True
        )
