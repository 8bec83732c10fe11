"""Whatever a body holds, the routes of Ollama and llama-server answer or refuse: no status from 500 but 501."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_app import peer_app

from caudal.server.llamacpp.protocol import CompletionRequest, InfillRequest
from caudal.server.ollama.protocol import ChatRequest, GenerateRequest, ModelRequest, Options

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "say:x", "json", "scripted", "low", "5m", "<|fim_prefix|>", "\ud800", "temperature"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "id", "text", "x"]), inner)
    ),
    max_leaves=5,
)


def bodies(*structs, **fixed):
    """Objects with some of the structs' fields, the fixed ones among them."""
    names = sorted({name for struct in structs for name in struct.__struct_fields__} - {"n_cmpl", "n"})
    some = st.dictionaries(st.sampled_from(names), VALUES, max_size=4)
    return some.map(lambda body: {**fixed, **body})


def message(text):
    return {"role": "user", "content": text}


ROUTES = {
    "/api/chat": bodies(ChatRequest, messages=[message("say:x")]),
    "/api/generate": bodies(GenerateRequest, prompt="say:x"),
    "/api/show": bodies(ModelRequest),
    "/api/pull": bodies(ModelRequest),
    "/api/embed": bodies(ModelRequest),
    "/completion": bodies(CompletionRequest, prompt="say:x"),
    "/completions": bodies(CompletionRequest, prompt="say:x", n_predict=3),
    "/infill": bodies(InfillRequest, input_prefix="say:x"),
    "/tokenize": st.fixed_dictionaries({"content": VALUES, "with_pieces": VALUES}),
    "/apply-template": st.fixed_dictionaries({"messages": VALUES, "tools": VALUES}),
    "/models/load": bodies(ModelRequest),
    "/models/unload": bodies(ModelRequest),
    "/lora-adapters": VALUES,
}


async def status_of(path, body):
    async with peer_app() as http, asyncio.timeout(20):
        response = await http.post(path, content=json.dumps(body))
        return response.status_code, response.text


@pytest.mark.parametrize("path", ROUTES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_body_is_a_failure_of_the_server(path, data):
    status, text = asyncio.run(status_of(path, data.draw(ROUTES[path])))
    assert status < 500 or status == 501, text


@given(st.dictionaries(st.sampled_from(sorted(Options.__struct_fields__)), VALUES))
@settings(max_examples=40, deadline=None)
def test_no_option_is_a_failure_of_the_server(options):
    status, text = asyncio.run(status_of("/api/chat", {"messages": [message("say:x")], "options": options}))
    assert status < 500, text


def test_the_fields_that_are_tried_are_the_protocols():
    assert {"prompt", "logit_bias"} <= set(CompletionRequest.__struct_fields__)
    assert msgspec.json.decode(b"{}", type=Options).stop is None
