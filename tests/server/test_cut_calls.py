"""Calls in which the answer was cut off, after any number of tokens: no API makes them look whole."""

from __future__ import annotations

import json

import pytest
from conftest import in_process
from drawn_pieces import sse_events
from peer_app import peer_app
from tagged_format import CallingTokenizer
from test_ollama_chat import _MarkedFormat
from test_openai_routes import events

import caudal.server.conversation

ARGUMENTS = '{"path": "/tmp/a", "recursive": true}'
SAID = f"!look|{{}};!rm|{ARGUMENTS};"
LENGTHS = range(1, len(SAID) + 2)
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "rm")]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(autouse=True)
def writes_marked(monkeypatch):
    monkeypatch.setattr(caudal.server.conversation, "format_of", lambda _: _MarkedFormat())


def written(length):
    """The calls that so many tokens hold, by name; their arguments as far as they go."""
    calls = {}
    for call in SAID[:length].split("!")[1:]:
        name, begun, arguments = call.partition("|")
        if begun:
            calls[name] = arguments.removesuffix(";")
    return calls


def chat(**fields):
    return {"model": "scripted", "messages": [{"role": "user", "content": f"say:{SAID}"}], "tools": TOOLS, **fields}


async def test_chat_tells_what_there_is_streamed_and_whole():
    async with in_process(tokenizer=CallingTokenizer(), max_model_len=8192) as http:
        for length in LENGTHS:
            body = chat(max_tokens=length)
            whole = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
            calls = whole["message"].get("tool_calls", [])
            told = {call["function"]["name"]: call["function"]["arguments"] for call in calls}
            assert told == written(length)
            assert whole["finish_reason"] == ("length" if length <= len(SAID) else "tool_calls")
            streamed = {}
            for event in events(await http.post("/v1/chat/completions", json={**body, "stream": True})):
                for call in event["choices"][0]["delta"].get("tool_calls", []):
                    streamed[call["index"]] = streamed.get(call["index"], "") + call["function"]["arguments"]
            assert list(streamed.values()) == list(told.values())


async def test_a_call_that_the_model_itself_ends_without_arguments_has_empty_ones():
    body = chat()
    body["messages"][0]["content"] = "say:!look|"
    async with in_process(tokenizer=CallingTokenizer(), max_model_len=8192) as http:
        (call,) = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["tool_calls"]
        chunks = events(await http.post("/v1/chat/completions", json={**body, "stream": True}))
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert call["function"]["arguments"] == "".join(delta["function"]["arguments"] for delta in deltas) == "{}"


async def test_a_call_that_a_stop_string_cuts_off_has_no_empty_arguments():
    async with in_process(tokenizer=CallingTokenizer(), max_model_len=8192) as http:
        body = chat(stop='{"path')
        *_, call = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "rm", "arguments": ""}


async def test_responses_tell_what_there_is_streamed_and_whole():
    async with in_process(tokenizer=CallingTokenizer(), max_model_len=8192) as http:
        for length in LENGTHS:
            body = {"model": "scripted", "input": f"say:{SAID}", "tools": FLAT, "max_output_tokens": length}
            whole = (await http.post("/v1/responses", json=body)).json()
            calls = [item for item in whole["output"] if item["type"] == "function_call"]
            assert {call["name"]: call["arguments"] for call in calls} == written(length)
            told = sse_events((await http.post("/v1/responses", json={**body, "stream": True})).content)
            done = [data["arguments"] for name, data in told if name == "response.function_call_arguments.done"]
            assert done == list(written(length).values())


async def test_ollama_tells_of_whole_calls_alone():
    """Its arguments are an object, so that there is no way to tell of half of them."""
    async with peer_app(max_model_len=8192) as http:
        for length in LENGTHS:
            body = chat(options={"num_predict": length})
            whole = (await http.post("/api/chat", json={**body, "stream": False})).json()
            calls = [call["function"] for call in whole["message"].get("tool_calls", [])]
            expected = [(name, text) for name, text in written(length).items() if text.endswith("}")]
            assert [(call["name"], call["arguments"]) for call in calls] == [
                (name, json.loads(text)) for name, text in expected
            ]
            assert whole["done_reason"] == ("length" if length <= len(SAID) else "stop")
            lines = [json.loads(line) for line in (await http.post("/api/chat", json=body)).text.splitlines()]
            told = [call["function"] for line in lines for call in line["message"].get("tool_calls", [])]
            assert told == calls


async def test_ollama_drops_a_call_that_a_stop_string_cuts_off():
    async with peer_app(max_model_len=8192) as http:
        body = {**chat(options={"stop": ["/tmp"]}), "stream": False}
        calls = (await http.post("/api/chat", json=body)).json()["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["look"]
