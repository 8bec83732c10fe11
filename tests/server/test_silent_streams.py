"""Streams whose pieces have no bytes yet: the engine writes all the time, and clients still hear something."""

from __future__ import annotations

import json

import httpx
import pytest
from calling_server import MODEL
from conftest import in_process, make_config, real_server
from peer_app import peer_app
from scripted_engine import ScriptedEngine
from tagged_format import CallingTokenizer, write_tagged

from caudal.engine.local_client import LocalEngineClient
from caudal.server.settings import ServerSettings

SETTINGS = ServerSettings(ping_interval_s=0.05, first_byte_wait_s=0.01)
COMMENT = ": ping\n\n"
EVENT = "event: ping\n"
THOUGHT = f"slow-say:<think>{'x' * 30}</think>ok"
CALLED = f"slow-say:<tool_call>{json.dumps({'name': 'look', 'arguments': {'input': 'x' * 20}})}</tool_call>"
HELD = f"slow-say:{'x' * 30}"
STOP = "x" * 40
FUNCTION = {"name": "look", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}


def chat(content, **fields):
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], "stream": True, **fields}


# llama-server's streams have a line for every token, with text or without: they are never silent.
OMITTED = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
CUSTOM = {"type": "custom", "name": "look"}
STREAMS = {
    "chat, a call": ("/v1/chat/completions", chat(CALLED, tools=[TOOL]), COMMENT),
    "chat, held back": ("/v1/chat/completions", chat(HELD, stop=STOP), COMMENT),
    "completions": ("/v1/completions", {"prompt": HELD, "stop": STOP, "max_tokens": 99, "stream": True}, COMMENT),
    "messages, thinking": ("/v1/messages", chat(THOUGHT, max_tokens=200, thinking=OMITTED), EVENT),
    "messages, held back": ("/v1/messages", chat(HELD, max_tokens=200, stop_sequences=[STOP]), EVENT),
    "responses": ("/v1/responses", {"model": "scripted", "input": CALLED, "tools": [CUSTOM], "stream": True}, COMMENT),
    "in the background": (
        "/v1/responses",
        {"model": "scripted", "input": CALLED, "tools": [CUSTOM], "stream": True, "background": True},
        COMMENT,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_pieces_without_bytes_are_silence(name, monkeypatch):
    """30 tokens in 0.6 s or more, of which nothing can be told before the last."""
    path, body, ping = STREAMS[name]
    write_tagged(monkeypatch)
    async with in_process(SETTINGS, CallingTokenizer(), max_model_len=8192) as http:
        response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.text.count(ping) >= 5, response.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", chat(CALLED, tools=[TOOL])),
        ("/api/chat", chat(HELD, options={"stop": [STOP]})),
        ("/api/generate", {"model": "scripted", "prompt": HELD, "raw": True, "options": {"stop": [STOP]}}),
    ],
    ids=["call", "held back", "generate"],
)
async def test_ollamas_streams_get_lines_that_add_nothing(path, body, monkeypatch):
    write_tagged(monkeypatch)
    async with peer_app(settings=SETTINGS) as http:
        response = await http.post(path, json=body)
    *lines, last = [json.loads(line) for line in response.text.splitlines()]
    empty = [line for line in lines if not (line.get("response") or any((line.get("message") or {}).values()))]
    empty += [line for line in lines if (line.get("message") or {}) == {"role": "assistant", "content": ""}]
    assert last["done"] is True, response.text
    assert len(empty) >= 5, response.text


async def test_a_stream_that_speaks_gets_no_pings():
    async with in_process(SETTINGS) as http:
        response = await http.post("/v1/completions", json={"prompt": HELD, "max_tokens": 99, "stream": True})
    assert COMMENT not in response.text


def test_pings_reach_a_client_before_the_answer_is_whole(monkeypatch):
    """Over sockets: what is written is also sent."""
    write_tagged(monkeypatch)
    engine = ScriptedEngine(make_config(max_model_len=8192))
    with (
        real_server(lambda: LocalEngineClient(engine), SETTINGS, CallingTokenizer(), MODEL) as (url, _),
        httpx.stream("POST", f"{url}/v1/chat/completions", json=chat(CALLED, tools=[TOOL]), timeout=20) as response,
    ):
        told = [engine.num_generated for line in response.iter_lines() if line == ": ping"]
    assert len(set(told)) >= 5
