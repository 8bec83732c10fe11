"""Lists that no model could read are refused when they have been counted, before anything is made of them."""

from __future__ import annotations

import pytest
from conftest import in_process
from test_responses_routes import ask, error_of

import caudal.server.responses.kept as kept_responses
from caudal.server.item_limit import MAX_ITEMS

MANY = MAX_ITEMS + 1
TURN = {"role": "user", "content": "x"}
TEXT = {"type": "text", "text": "x"}
INPUT = {"type": "input_text", "text": "x"}


def turns(**fields):
    return [{**TURN, **fields}]


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT] * MANY}
OUTPUT = {"type": "function_call_output", "call_id": "t", "output": [INPUT] * MANY}
BODIES = [
    ("/v1/chat/completions", "messages", [TURN] * MANY),
    ("/v1/chat/completions", "messages", turns(content=[TEXT] * MANY)),
    ("/v1/chat/completions", "messages", turns(content=[TEXT] * 200) * 100),
    ("/v1/chat/completions", "messages", turns(tool_calls=[{}] * MANY)),
    ("/tokenize", "messages", [TURN] * MANY),
    ("/apply-template", "messages", [TURN] * MANY),
    ("/v1/messages", "messages", [TURN] * MANY),
    ("/v1/messages", "messages", turns(content=[RESULT])),
    ("/v1/messages/count_tokens", "messages", [TURN] * MANY),
    ("/v1/responses", "input", [TURN] * MANY),
    ("/v1/responses", "input", [OUTPUT]),
    ("/v1/responses", "input", [{"type": "item_reference", "id": "x"}] * MANY),
    ("/v1/responses/input_tokens", "input", [TURN] * MANY),
    ("/api/chat", "messages", [TURN] * MANY),
    ("/api/chat", "messages", turns(images=["x"] * MANY)),
    ("/v1/messages", "system", [TEXT] * MANY),
    ("/v1/messages", "tools", [{"name": "f"}] * MANY),
    ("/v1/chat/completions", "tools", [{"function": {"name": "f"}}] * MANY),
    ("/v1/chat/completions", "functions", [{"name": "f"}] * MANY),
    ("/v1/responses", "tools", [{"type": "function", "name": "f"}] * MANY),
]


@pytest.mark.parametrize(("path", "field", "items"), BODIES)
async def test_too_many_items_are_a_400_that_names_them(http, path, field, items):
    response = await http.post(path, json={"model": "scripted", "max_tokens": 5, "messages": [TURN], field: items})
    assert response.status_code == 400
    assert f"{field} has " in response.text
    assert f"at most {MAX_ITEMS}" in response.text


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input")])
async def test_as_many_as_that_are_read(http, path, field):
    """And are found to be too long."""
    response = await http.post(path, json={"model": "scripted", field: [TURN] * MAX_ITEMS})
    assert response.json()["error"]["code"] == "context_length_exceeded", response.text


async def test_a_chain_of_responses_has_the_same_bound(monkeypatch):
    monkeypatch.setattr("caudal.server.item_limit.MAX_ITEMS", 10)
    async with in_process(max_model_len=8192) as http:
        first = (await ask(http, [TURN] * 4)).json()
        assert (await ask(http, [TURN] * 2, previous_response_id=first["id"])).status_code == 200
        error = error_of(await ask(http, [TURN] * 6, previous_response_id=first["id"]), 400)
    assert error["param"] == "input"


async def test_a_conversation_is_decoded_once_for_all_references(monkeypatch):
    decoded = []
    decode = kept_responses._decode_items
    monkeypatch.setattr(kept_responses, "_decode_items", lambda data: (decoded.append(1), decode(data))[1])
    async with in_process(max_model_len=8192) as http:
        first = (await ask(http, "say:hi")).json()
        item = {"type": "item_reference", "id": first["output"][0]["id"]}
        assert (await ask(http, [*[item] * 50, {"role": "user", "content": "say:x"}])).status_code == 200
    assert len(decoded) == 1


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/completions", "prompt"), ("/completion", "prompt"), ("/v1/embeddings", "input"), ("/embedding", "content")],
)
@pytest.mark.parametrize("nested", [False, True])
async def test_more_ids_than_the_context_are_not_looked_at(http, path, field, nested):
    """One of them is no token, which nobody notices: they are counted first."""
    ids = [*[5] * 1100, 10**6]
    response = await http.post(path, json={field: [ids] if nested else ids})
    assert response.status_code == 400
    assert "1101 tokens" in response.text
