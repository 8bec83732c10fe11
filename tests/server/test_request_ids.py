from __future__ import annotations

import re

import pytest
from conftest import in_process

from caudal.server.settings import ServerSettings

OURS = re.compile(r"req_[0-9a-f]{24}")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nope", "/v1/responses/x"])
async def test_every_response_has_an_id(http, path):
    first, second = [(await http.get(path)).headers for _ in range(2)]
    assert OURS.fullmatch(first["x-request-id"])
    assert first["x-request-id"] == first["request-id"] != second["request-id"]


async def test_refusals_before_the_routes_have_one_too():
    async with in_process(ServerSettings(api_keys=("k",))) as http:
        response = await http.get("/v1/models")
    assert response.status_code == 401
    assert OURS.fullmatch(response.headers["x-request-id"])


async def test_streams_have_one(http):
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    assert OURS.fullmatch((await http.post("/v1/chat/completions", json=body)).headers["x-request-id"])


async def test_a_clients_id_is_only_given_back(http):
    headers = (await http.get("/health", headers={"x-request-id": "mine"})).headers
    assert OURS.fullmatch(headers["x-request-id"])
    assert headers["x-client-request-id"] == "mine"
    assert "x-client-request-id" not in (await http.get("/health", headers={"x-request-id": "a" * 1000})).headers
