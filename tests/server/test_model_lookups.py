"""Models that came, or whose engine starts again, since somebody last looked; and errors in the shape of their API."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from conftest import in_process
from peer_app import MODEL, peer_app

from caudal.server.model_directory import OneModel
from caudal.server.settings import ServerSettings

CHAT = {"messages": [{"role": "user", "content": "say:hi"}], "stream": False}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/show", {}),
        ("/api/chat", CHAT),
        ("/api/generate", {"prompt": "say:hi", "stream": False}),
        ("/api/pull", {"stream": False}),
        ("/admin/models/load", {}),
        ("/models/load", {}),
    ],
)
async def test_a_file_that_has_just_come_is_found(monkeypatch, path, body):
    new = replace(MODEL, name="new", aliases=())
    async with peer_app() as http:
        has_looked = []

        async def refresh(_):
            has_looked.append(True)

        monkeypatch.setattr(OneModel, "refresh", refresh)
        monkeypatch.setattr(OneModel, "served", lambda _: (MODEL, new) if has_looked else (MODEL,))
        monkeypatch.setattr(
            OneModel, "find", lambda self, name: next((m for m in self.served() if m.answers_to(name)), None)
        )
        found = await http.post(path, json={"model": "new", **body})
        assert has_looked
        if path in ("/api/show", "/api/pull"):  # the others lease it, and this app has but one
            assert found.status_code == 200
        has_looked.clear()
        assert (await http.post(path, json={"model": MODEL.name, **body})).status_code != 404
        assert has_looked == []  # a name that is known costs no look at the disk


async def test_what_a_model_does_is_not_guessed_while_its_engine_starts(monkeypatch):
    async with peer_app() as http:
        monkeypatch.setattr(type(http.engine_client), "ready", None)
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})):
            refused = await http.post(path, json={"model": MODEL.name, **body})
            assert refused.status_code == 503
            assert refused.headers["retry-after"]


@pytest.mark.parametrize("headers", [{}, {"origin": "https://evil.example"}, {"host": "evil.example"}])
@pytest.mark.parametrize(
    ("method", "path", "shape"),
    [
        ("GET", "/api/none", "ollama"),
        ("DELETE", "/api/chat", "ollama"),
        ("GET", "/v1/messages", "anthropic"),
        ("POST", "/v1/messages/none", "anthropic"),
        ("GET", "/v1/chat/completions", "openai"),
        ("GET", "/v1/none", "openai"),
    ],
)
async def test_refusals_of_the_router_and_the_guard_have_the_apis_shape(method, path, shape, headers):
    async with in_process(ServerSettings()) as http:
        response = await http.request(method, path, headers=headers)
    assert response.status_code in ((403,) if headers else (404, 405))
    error = json.loads(response.text)["error"]
    if shape == "ollama":
        assert isinstance(error, str)
    elif shape == "anthropic":
        assert response.json()["type"] == "error"
        assert error["message"]
    else:
        assert {"message", "type", "code", "param"} <= set(error)
