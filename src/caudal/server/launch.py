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
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from caudal.checkpoint import open_checkpoint
from caudal.engine.engine_client import EngineClient
from caudal.engine.engine_process import DEFAULT_ENGINE
from caudal.errors import ConfigError
from caudal.server.app import create_app
from caudal.server.http_protocol import BoundedProtocol
from caudal.server.settings import LOOPBACK_HOSTS, ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette

    from caudal.config import EngineConfig
    from caudal.server.tokenizer_port import ServedTokenizer

log = logging.getLogger(__name__)

_LAST_RESORT_S = 5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(config: EngineConfig, settings: ServerSettings, model: ServedModel) -> None:
    """Serve a GGUF model until a signal comes.

    Raises:
        ConfigError: the address cannot be used, or is open to others without a key.
        CheckpointError: the model cannot be used.
        CaudalError: the engine did not start.
    """
    from caudal.tokenizer.from_gguf import load_tokenizer  # noqa: PLC0415 - heavy, and a wrong flag is told before

    check_exposure(settings)
    with listen(settings) as listener:
        with open_checkpoint(config.model_path) as checkpoint:
            tokenizer = load_tokenizer(checkpoint.metadata, path=config.model_path)
        run_server(listener, config, tokenizer, settings, model)


def check_exposure(settings: ServerSettings) -> None:
    """Raise ConfigError for a server that others can reach and nothing guards, unless that was asked for."""
    if settings.host in LOOPBACK_HOSTS or settings.api_keys or settings.insecure_no_key:
        return
    message = (
        f"host is {settings.host!r}, which other machines can reach, and there is no API key; add --api-key KEY, "
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


def run_server(
    listener: socket.socket,
    config: EngineConfig,
    tokenizer: ServedTokenizer,
    settings: ServerSettings,
    model: ServedModel,
    engine_factory: str = DEFAULT_ENGINE,
) -> None:
    """Serve on a listening socket until a signal comes. Raises what EngineClient.start raises."""
    client = EngineClient(config, engine_factory=engine_factory)
    app = create_app(client, tokenizer, model, settings)
    server = _Server(_uvicorn_config(app, settings))
    factory = server.config.get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_Service(server, client, listener, settings).run())


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
    """The HTTP server and the engine, started and stopped together."""

    def __init__(
        self, server: _Server, client: EngineClient, listener: socket.socket, settings: ServerSettings
    ) -> None:
        self._server = server
        self._client = client
        self._listener = listener
        self._settings = settings
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Load, serve, and return when a signal has ended it."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        loading = asyncio.create_task(self._client.start())
        try:
            await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and not loading.cancelled() and loading.exception() is None:
                self._announce()
                await serving
        finally:
            self._server.should_exit = True
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await self._client.close()
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
        if self._client.num_open:
            log.warning("finishing %d open requests; a second signal leaves at once", self._client.num_open)
        waiting = asyncio.create_task(self._client.drain(self._settings.drain_s))
        while not waiting.done() and not self._server.force_exit:
            await asyncio.wait((waiting,), timeout=0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await self._client.close()

    def _announce(self) -> None:
        host, port = self._listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        ready = self._client.ready
        cache = "" if ready is None else f", KV cache {ready.kv_dtype}"
        print(  # noqa: T201
            f"Caudal is ready on http://{host}:{port} (OpenAI API under /v1){cache}", file=sys.stderr, flush=True
        )
