from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from byte_tokenizer import ByteTokenizer
from scripted_engine import ScriptedEngine

from caudal.config import EngineConfig
from caudal.engine.local_client import LocalEngineClient
from caudal.server.app import create_app
from caudal.server.settings import ServedModel, ServerSettings

MODEL = ServedModel(name="scripted", aliases=("org/other:tag",), created=1)


def make_config(**changes):
    return EngineConfig(**{"model_path": "scripted", "max_num_seqs": 64, **changes})


@asynccontextmanager
async def in_process(settings=None, tokenizer=None, *, engine=None, **config):
    """An httpx client of an app whose engine runs in a thread; no sockets."""
    engine = engine or ScriptedEngine(make_config(**config))
    client = LocalEngineClient(engine)
    await client.start()
    app = create_app(client, tokenizer or ByteTokenizer(), MODEL, settings or ServerSettings())
    transport = httpx.ASGITransport(app=app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            http.context = app.state.context
            http.accounts = http.context.accounts
            http.engine_client = client
            http.engine = engine
            yield http
    finally:
        await client.close()
        await asyncio.to_thread(app.state.context.accounts.close)


@pytest.fixture
async def http():
    async with in_process() as client:
        yield client


@contextmanager
def real_server(make_client, settings=None, tokenizer=None, model=MODEL):
    """A uvicorn server on a free port of 127.0.0.1, in a thread. Yields the base URL and the engine client."""
    started = threading.Event()
    box = {}

    async def serve():
        client = make_client()
        await client.start()
        app = create_app(client, tokenizer or ByteTokenizer(), model, settings or ServerSettings())
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        box.update(server=server, client=client, url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        started.set()
        await task
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    try:
        yield box["url"], box["client"]
    finally:
        box["server"].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def tests_importable():
    """The engine process can import scripted_engine."""
    patch = pytest.MonkeyPatch()
    src = Path(__file__).parents[2] / "src"
    patch.setenv("PYTHONPATH", f"{src}:{Path(__file__).parent}")
    yield
    patch.undo()
