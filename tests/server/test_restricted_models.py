"""A key that may use some models reaches no other one, on any route, whatever it calls it or leaves out."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from byte_tokenizer import ByteTokenizer
from conftest import make_config
from scripted_engine import ScriptedEngine
from test_keys import bearer
from test_responses_routes import until_ended

from caudal.engine.local_client import LocalEngineClient
from caudal.server.app import app_of
from caudal.server.context import ServerContext
from caudal.server.keys.key import INFERENCE, MODELS_WRITE, KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.metrics import ServerMetrics
from caudal.server.model_directory import OneModel, unknown_model
from caudal.server.model_events import ModelEvents
from caudal.server.routes import described_routes
from caudal.server.settings import ServedModel, ServerSettings


class Directory:
    """Several models, the first of which is the default; remembers which of them were got, loaded, unloaded or kept."""

    def __init__(self, models):
        self._models = {model.served()[0].name: model for model in models}
        self.events = ModelEvents()
        self.healthy = True
        self.touched = []

    def served(self):
        return tuple(model.served()[0] for model in self._models.values())

    def loaded(self):
        return tuple(model.loaded()[0] for model in self._models.values())

    def find(self, name):
        return next((info for info in self.served() if info.answers_to(name)), None)

    def _touch(self, name):
        info = self.find(name)
        if info is None:
            raise unknown_model(name, self.served())
        self.touched.append(info.name)
        return self._models[info.name]

    @asynccontextmanager
    async def lease(self, name):
        yield self._touch(name).loaded()[0]

    async def refresh(self):
        pass

    async def load(self, name):
        return self._touch(name).statuses()[0]

    async def unload(self, name):
        return self._touch(name).statuses()[0]

    def keep(self, name, _keep_alive_s):
        self._touch(name)

    def statuses(self):
        return [model.statuses()[0] for model in self._models.values()]

    def sick(self):
        return ()

    def close(self):
        for model in self._models.values():
            model.close()


@asynccontextmanager
async def two_models(tmp_path):
    """An app that serves "hidden", its default, and "open"; yields a client whose key may use the latter."""
    store = KeyStore(tmp_path)
    secret = store.create(KeyFields(name="k", scopes=(INFERENCE, MODELS_WRITE), models=("open",))).secret
    metrics, clients = ServerMetrics(), [LocalEngineClient(ScriptedEngine(make_config())) for _ in range(2)]
    for client in clients:
        await client.start()
    infos = (ServedModel(name="hidden", created=1), ServedModel(name="open", created=1))
    directory = Directory(
        [OneModel(client, ByteTokenizer(), info, metrics) for client, info in zip(clients, infos, strict=True)]
    )
    context = ServerContext(directory, ServerSettings(state_dir=tmp_path), metrics)
    transport = httpx.ASGITransport(app=app_of(context))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=bearer(secret)) as http:
            http.directory = directory
            yield http
    finally:
        await context.responses.close()
        directory.close()
        for client in clients:
            await client.close()
        await asyncio.to_thread(context.accounts.close)


BODY = {
    "messages": [{"role": "user", "content": "say:hi"}],
    "prompt": "say:hi",
    "input": "say:hi",
    "content": "say:hi",
    "tokens": [104, 105],
    "query": "a",
    "documents": ["b"],
    "input_prefix": "a",
    "input_suffix": "b",
    "max_tokens": 4,
    "max_output_tokens": 4,
}
"""Something for every route."""


def body_of(path):
    """The body that a route takes: the Responses API has a prompt of its own."""
    return {name: value for name, value in BODY.items() if name != "prompt" or "/responses" not in path}


POSTS = sorted({route.path for route in described_routes() if route.method == "POST" and "{" not in route.path})
GETS = sorted(
    {
        route.path
        for route in described_routes()
        if route.method == "GET" and "{" not in route.path and "sse" not in route.path  # a stream without an end
    }
)


@pytest.mark.parametrize("name", ["", None, "hidden", "hidden:latest"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True},
        {"background": True},
        {"background": True, "stream": True},
        {"keep_alive": 0, "messages": [], "prompt": ""},
        {"keep_alive": "5m", "messages": [], "prompt": ""},
    ],
)
async def test_no_route_touches_a_model_that_the_key_may_not_use(tmp_path, name, fields):
    async with two_models(tmp_path) as http:
        answered = set()
        for path in POSTS:
            model = {} if name is None else {"model": name, "name": name}
            response = await http.post(path, json={**body_of(path), **fields, **model})
            if response.status_code == 200:
                answered.add(path)
        for path in ("/props", "/slots", "/v1/tokenizer_info", "/tokenizer_info"):
            for query in ({"model": name or ""}, {"model": name or "", "autoload": "false"}):
                await http.get(path, params=query)
        assert "hidden" not in http.directory.touched
        if name == "":  # the first model that the key may use, on every route that does without a name
            assert "open" in http.directory.touched
            assert answered > ({"/tokenize", "/v1/responses"} if "prompt" not in fields else {"/api/generate"})


async def test_a_response_in_the_background_is_made_by_the_model_that_was_checked(tmp_path):
    async with two_models(tmp_path) as http:
        body = {"model": "", "input": "say:hi", "background": True}
        response = await http.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        assert (await until_ended(http, response.json()["id"]))["status"] == "completed"
        assert http.directory.touched == ["open"]  # once: what was checked is what is used


async def test_no_list_has_a_model_that_the_key_may_not_use(tmp_path):
    async with two_models(tmp_path) as http:
        seen = 0
        for path in GETS:
            response = await http.get(path)
            assert "hidden" not in response.text, path
            seen += '"open"' in response.text or "open:latest" in response.text
        assert seen > 3
        assert [row["model"] for row in (await http.get("/admin/models")).json()["models"]] == ["open"]


@pytest.mark.parametrize("path", ["/admin/models/load", "/admin/models/unload", "/models/load", "/models/unload"])
async def test_loading_and_unloading_are_for_models_that_the_key_may_use(tmp_path, path):
    async with two_models(tmp_path) as http:
        forbidden = await http.post(path, json={"model": "hidden"})
        unknown = await http.post(path, json={"model": "nowhere"})
        assert forbidden.status_code == unknown.status_code == 404
        assert forbidden.text.replace("hidden", "nowhere") == unknown.text
        assert http.directory.touched == []
        await http.post(path, json={"model": "open"})
        assert http.directory.touched == ["open"]
