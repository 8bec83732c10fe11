"""What llama-server's clients look up: props, slots, tokens, templates, models."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import httpx
import pytest
from conftest import make_config, real_server
from peer_app import BaseTokenizer, peer_app
from scripted_engine import ScriptedEngine

from caudal.engine.local_client import LocalEngineClient
from caudal.server.llamacpp import router
from caudal.server.model_directory import OneModel
from caudal.server.model_events import UNLOADED, UNLOADING, ModelStatus
from caudal.server.settings import ServerSettings


@pytest.fixture
async def peer():
    async with peer_app() as client:
        yield client


async def get(http, path):
    response = await http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def post(http, path, body):
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (status, kind)
    return error["message"]


async def test_props(peer):
    for path in ("/props", "/props?model=scripted&autoload=false", "/props?model=org%2FScripted%3AQ4&x"):
        props = await get(peer, path)
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert props["default_generation_settings"]["params"]["top_k"] == 40
        assert props["total_slots"] == 64
        assert (props["model_alias"], props["model_path"]) == ("org/Scripted:Q4", "scripted-Q4_K_M.gguf")
        assert (props["bos_token"], props["eos_token"]) == ("<|256|>", "<|257|>")
        assert props["chat_template"] == "{{ tools }} enable_thinking"
        assert props["chat_template_caps"]["supports_tools"] is True
        assert not any(props["modalities"].values())
        assert props["build_info"].startswith("b")
        assert props["is_sleeping"] is False


async def test_props_of_a_model_that_is_not_here(peer):
    assert "other" in error_of(await peer.get("/props?model=other"), 404, "not_found_error")
    assert "other" in error_of(await peer.get("/props?model=other&autoload=false"), 404, "not_found_error")
    error_of(await peer.post("/props", json={}), 501, "not_supported_error")


async def test_a_model_is_not_loaded_for_props_unless_it_may(peer, monkeypatch):
    monkeypatch.setattr(OneModel, "statuses", lambda _: (ModelStatus(name="org/Scripted:Q4", state=UNLOADED),))
    monkeypatch.setattr(OneModel, "loaded", lambda _: ())
    message = error_of(await peer.get("/props?autoload=false"), 400, "invalid_request_error")
    assert "not loaded" in message
    await get(peer, "/props")


async def test_slots():
    async with peer_app(max_num_seqs=2) as http:
        slots = await get(http, "/slots")
        assert slots[0] == {"id": 0, "n_ctx": 512, "speculative": False, "is_processing": False}
        assert [slot["id"] for slot in slots] == [0, 1]
        assert (await get(http, "/props"))["total_slots"] == 2
        await get(http, "/slots?fail_on_no_slot=1")
        ask = http.post("/completion", json={"prompt": "slow-loop:x", "n_cmpl": 2})
        open_ones = asyncio.create_task(ask)
        async with asyncio.timeout(5):
            while not all(slot["is_processing"] for slot in await get(http, "/slots")):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        error_of(await http.get("/slots?fail_on_no_slot=1"), 503, "unavailable_error")
        open_ones.cancel()
        error_of(await http.post("/slots/0?action=save", json={"filename": "../x"}), 501, "not_supported_error")


async def test_adapters(peer):
    assert await get(peer, "/lora-adapters") == []
    assert await post(peer, "/lora-adapters", []) == {"success": True}
    error_of(await peer.post("/lora-adapters", json=[{"id": 0, "scale": 1}]), 400, "invalid_request_error")
    error_of(await peer.post("/lora-adapters", json={}), 400, "invalid_request_error")


async def test_tokens_of_a_content(peer):
    assert await post(peer, "/tokenize", {"content": "añ"}) == {"tokens": [97, 0xC3, 0xB1]}
    assert await post(peer, "/tokenize", {"content": "a", "add_special": True}) == {"tokens": [256, 97]}
    assert await post(peer, "/tokenize", {"content": ""}) == {"tokens": []}
    assert await post(peer, "/tokenize", {"content": [256, "a"]}) == {"tokens": [256, 97]}
    assert await post(peer, "/tokenize", {"content": "áb", "with_pieces": True}) == {
        "tokens": [{"id": 0xC3, "piece": [0xC3]}, {"id": 0xA1, "piece": [0xA1]}, {"id": 98, "piece": "b"}]
    }
    assert (await post(peer, "/detokenize", {"tokens": [97, 0xC3, 0xB1]}))["content"] == "añ"
    assert (await post(peer, "/tokenize", {"prompt": "a", "content": "b"}))["tokens"] == [256, 97]
    for content in (3, {}, [True], [9999]):
        assert (await peer.post("/tokenize", json={"content": content})).status_code == 400


async def test_apply_template(peer):
    body = {"messages": [{"role": "user", "content": "ñ"}], "chat_template_kwargs": {"enable_thinking": False}}
    assert await post(peer, "/apply-template", body) == {"prompt": "[enable_thinking=False]<user>ñ\n<assistant>"}
    open_ended = {**body, "chat_template_kwargs": None, "add_generation_prompt": False}
    assert await post(peer, "/apply-template", open_ended) == {"prompt": "<user>ñ\n"}
    counted = await post(peer, "/v1/chat/completions/input_tokens", open_ended)
    assert counted == {"object": "response.input_tokens", "input_tokens": 1 + len("<user>ñ\n".encode())}
    assert await post(peer, "/chat/completions/input_tokens", open_ended) == counted
    for messages, kwargs in (
        ([], {}),
        ([{"role": "user", "content": "refuse-me"}], {}),
        (body["messages"], {"tools": 1}),
    ):
        response = await peer.post("/apply-template", json={"messages": messages, "chat_template_kwargs": kwargs})
        error_of(response, 400, "invalid_request_error")


async def test_tokenizer_info(peer):
    info = await get(peer, "/tokenizer_info")
    assert (info["bos_token"], info["eos_token"]) == ("<|256|>", "<|257|>")
    assert info["chat_template"] == "{{ tools }} enable_thinking"
    async with peer_app(BaseTokenizer()) as http:
        assert (await get(http, "/tokenizer_info"))["chat_template"] is None


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/embedding"])
async def test_what_needs_another_model_is_refused(peer, path):
    body = {"query": "q", "documents": ["d"], "content": "x"}
    response = await peer.post(path, json=body)
    assert response.status_code == 400
    assert "writes text" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
async def test_models_have_figures_and_a_status(peer, path):
    answer = await get(peer, path)
    first, alias = answer["data"]
    assert (first["id"], alias["id"]) == ("org/Scripted:Q4", "scripted")
    assert first["status"] == {"value": "loaded"}
    assert first["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert first["meta"] == {
        "vocab_type": 0,
        "n_vocab": 265,
        "n_ctx_train": 32768,
        "n_embd": 1536,
        "n_params": 1_543_000_000,
        "size": 986_000_000,
    }
    assert (first["max_model_len"], first["aliases"]) == (512, ["scripted"])
    assert [model["name"] for model in answer["models"]] == ["org/Scripted:Q4", "scripted"]
    assert answer["models"][0]["capabilities"] == ["completion", "tools", "thinking", "insert"]


async def test_one_model_is_loaded_and_stays(peer):
    assert await post(peer, "/models/load", {"model": "scripted"}) == {"success": True}
    message = error_of(await peer.post("/models/unload", json={"model": "scripted"}), 400, "invalid_request_error")
    assert "cannot be unloaded" in message
    for action in ("load", "unload"):
        error_of(await peer.post(f"/models/{action}", json={"model": "other"}), 404, "not_found_error")
        error_of(await peer.post(f"/models/{action}", json={}), 400, "invalid_request_error")
    error_of(await peer.post("/models", json={"model": "x"}), 501, "not_supported_error")
    error_of(await peer.delete("/models?model=x"), 501, "not_supported_error")


async def test_unloading_goes_to_the_directory(peer, monkeypatch):
    unloaded = []

    async def unload(_self, name):
        unloaded.append(name)

    monkeypatch.setattr(OneModel, "unload", unload)
    assert await post(peer, "/models/unload", {"model": "scripted"}) == {"success": True}
    assert unloaded == ["org/Scripted:Q4"]


def test_events_of_models_over_a_socket():
    with (
        real_server(lambda: LocalEngineClient(ScriptedEngine(make_config()))) as (url, _),
        httpx.stream("GET", f"{url}/models/sse", timeout=10) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        line = next(response.iter_lines())
    assert json.loads(line.removeprefix("data: ")) == {
        "model": "scripted",
        "event": "model_status",
        "data": {"status": "loaded", "info": {"n_ctx": 512}},
    }


async def test_every_change_is_an_event_and_silence_is_filled(monkeypatch):
    monkeypatch.setattr(router, "_CHECK_S", 0.01)
    async with peer_app(settings=ServerSettings(ping_interval_s=0.03)) as http:
        models = http.context.models
        name = models.served()[0].name
        events = router._events(SimpleNamespace(context=http.context, served=models.served), 0.03)
        assert b'"loaded"' in await anext(events)
        models.events.publish(ModelStatus(name=name, state=UNLOADING))
        assert json.loads((await anext(events)).removeprefix(b"data: "))["data"] == {"status": "loaded"}
        models.events.publish(ModelStatus(name="another's", state=UNLOADED))
        models.events.publish(ModelStatus(name=name, state=UNLOADED, error="no room"))
        assert json.loads((await anext(events)).removeprefix(b"data: ")) == {
            "model": name,
            "event": "model_status",
            "data": {"status": "unloaded", "failed": True},
        }
        assert await anext(events) == b": ping\n\n"
        await http.engine_client.close()
        assert [event async for event in events] in ([], [b": ping\n\n"])
