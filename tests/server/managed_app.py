"""An app whose models clients may change, without sockets: a tiny hub, a folder, and engines of their own processes."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from byte_tokenizer import ByteTokenizer
from conftest import make_config
from factory import tiny_checkpoint

from caudal.server.app import app_of
from caudal.server.context import ServerContext
from caudal.server.launch import ModelSources
from caudal.server.many_models import ManyModels
from caudal.server.metrics import ServerMetrics
from caudal.server.model_changes import ModelChanges
from caudal.server.residency import Residency
from caudal.server.running_model import Memory, ModelStarter
from caudal.server.settings import ServedModel, ServerSettings

PLENTY = 1 << 50


@functools.cache
def tiny_gguf():
    """The bytes of a model file with a good header."""
    with tempfile.TemporaryDirectory() as place:
        return tiny_checkpoint(Path(place, "m.gguf"), num_layers=1).read_bytes()


def fill(hub):
    """Give the hub models."""
    data = tiny_gguf()
    hub.repos["org/m"] = {"m-Q4_K_M.gguf": data, "m-Q8_0.gguf": data + b"8", "README.md": b"#"}
    hub.repos["org/n"] = {"n-Q4_K_M.gguf": data + b"n"}
    hub.repos["org/broken"] = {"b.gguf": b"GGML is no model"}
    return hub


@asynccontextmanager
async def managed_app(place, *named, manages=True, settings=None):
    """An httpx client. Models are in `models` of the place; those named are files of the place itself."""
    (place / "models").mkdir(exist_ok=True)
    for name in named:
        (place / f"{name}.gguf").write_bytes(tiny_gguf())
    files = tuple((ServedModel(name=name), place / f"{name}.gguf") for name in named)
    sources = ModelSources(named=files, folder=place / "models", manages=manages)
    catalog, library, metrics = sources.catalog(), sources.library(), ServerMetrics()
    starter = ModelStarter(
        config=make_config(max_model_len=100_000),
        load_tokenizer=lambda _path, _template: ByteTokenizer(),
        engine_factory="scripted_engine:load",
        metrics=metrics,
    )
    many = ManyModels(catalog, starter, Residency(), Memory(free_bytes=lambda: PLENTY))
    changes = None if library is None else ModelChanges(library, many, catalog.look_again)
    context = ServerContext(many, settings or ServerSettings(), metrics, changes)
    transport = httpx.ASGITransport(app=app_of(context))
    await many.start()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30) as http:
            http.models = many
            yield http
    finally:
        if changes is not None:
            changes.leave()
        await many.stop()
        await asyncio.to_thread(context.accounts.close)
