from __future__ import annotations

import re

import msgspec
import pytest
from test_openai_routes import chat

from caudal.server.openapi import document
from caudal.server.problems import ErrorBody
from caudal.server.routes import described_routes


@pytest.fixture
async def page(http):
    return (await http.get("/openapi.json")).json()


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


async def test_every_route_is_described(page):
    assert page["openapi"] == "3.1.0"
    for row in described_routes():
        path = re.sub(r":\w+\}", "}", row.path)
        if path == "/openapi.json":
            continue
        operation = page["paths"][path][row.method.lower()]
        assert operation["summary"], row.path
        assert set(operation["responses"]) == {"200", "default"}


async def test_references_lead_somewhere(page):
    found = set(references(page))
    assert found
    for reference in found:
        *_, room, kind, name = reference.split("/")
        assert name in page[room][kind]


async def test_operation_ids_are_unique(page):
    ids = [operation["operationId"] for path in page["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


async def test_rows_name_their_structs(page):
    operation = page["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatRequest"}
    content = operation["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatCompletion"}
    assert "text/event-stream" in content
    error = operation["responses"]["default"]["content"]["application/json"]["schema"]
    assert error == {"$ref": "#/components/schemas/ErrorBody"}
    (parameter,) = page["paths"]["/models/{model_id}"]["get"]["parameters"]
    assert parameter["name"] == "model_id"


def other_shape(_problem):
    return b""


def test_rows_without_structs_are_described_all_the_same():
    rows = described_routes()
    plain = [type(row)(method=row.method, path=row.path, handler=row.handler, shapes=type(row.shapes)(),
                       error_shape=other_shape) for row in rows]  # fmt: skip
    page = document(plain)
    assert page["paths"]["/v1/completions"]["post"]["requestBody"] == {"content": {"application/json": {}}}
    assert list(page["components"]["schemas"]) == ["ErrorBody", "ErrorDetail"]


async def test_what_errors_look_like(http):
    msgspec.json.decode((await chat(http, "x", n=-1)).content, type=ErrorBody)
