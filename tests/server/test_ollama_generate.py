from __future__ import annotations

import json
import math

import pytest
from peer_app import MID, PRE, SUF, BaseTokenizer, peer_app, prompt_text

from caudal.server.model_directory import OneModel


@pytest.fixture
async def peer():
    async with peer_app() as client:
        yield client


async def generate(http, prompt, **fields):
    return await http.post("/api/generate", json={"model": "scripted", "prompt": prompt, "stream": False, **fields})


async def answer_to(http, prompt, **fields):
    response = await generate(http, prompt, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_prompt_goes_through_the_template(peer):
    answer = await answer_to(peer, "say:hi", system="be kind")
    assert answer["response"] == "hi"
    assert prompt_text(peer) == "<|256|><system>be kind\n<user>say:hi\n<assistant>"
    assert answer["prompt_eval_count"] == len(peer.engine.seen[-1])


async def test_a_raw_prompt_does_not(peer):
    answer = await answer_to(peer, "say:hi", raw=True)
    assert answer["response"] == "hi"
    assert prompt_text(peer) == "<|256|>say:hi"
    assert "context" not in answer


async def test_a_base_model_gets_the_bare_prompt():
    async with peer_app(BaseTokenizer()) as http:
        assert (await answer_to(http, "say:hi", system="s"))["response"] == "hi"
        assert prompt_text(http) == "<|256|>s\n\nsay:hi"


async def test_a_context_goes_on_where_the_answer_ended(peer):
    first = await answer_to(peer, "say:hi")
    assert first["context"] == [*peer.engine.seen[-1], *b"hi", 257]
    second = await answer_to(peer, "say:ho", context=first["context"])
    assert second["response"] == "ho"
    assert prompt_text(peer) == "<|256|><user>say:hi\n<assistant>hi<|257|><user>say:ho\n<assistant>"
    stream = await peer.post("/api/generate", json={"prompt": "say:hi"})
    assert json.loads(stream.text.splitlines()[-1])["context"] == first["context"]


async def test_a_suffix_makes_a_gap(peer):
    answer = await answer_to(peer, "say:x = ", suffix="\n<end", options={"num_predict": 3})
    assert prompt_text(peer) == f"<|256|><|{PRE}|>say:x = <|{SUF}|>\n<end<|{MID}|>"
    assert answer["response"] == "x ="


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"images": ["aGk="]}, "images"),
        ({"raw": True, "system": "s"}, "raw"),
        ({"raw": True, "context": [1]}, "raw"),
        ({"context": [9999]}, "9999"),
        ({"context": [-1]}, "-1"),
        ({"format": "yaml"}, "format"),
        ({"prompt": "x" * 600}, "512"),
        ({"context": [97] * 600}, "512"),
    ],
)
async def test_what_is_refused_is_named(peer, fields, word):
    response = await generate(peer, **{"prompt": "say:x", **fields})
    assert response.status_code == 400, response.text
    assert word in response.json()["error"]


async def test_a_model_without_tokens_for_gaps_says_so():
    async with peer_app(BaseTokenizer()) as http:
        response = await generate(http, "x", suffix="y")
        assert response.status_code == 400
        assert "does not support insert" in response.json()["error"]


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_no_prompt_loads_the_model(peer, path):
    for fields in ({}, {"keep_alive": "5m"}, {"keep_alive": -1}, {"messages": [], "prompt": ""}):
        answer = (await peer.post(path, json={"model": "scripted", **fields})).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert answer["model"] == "scripted"
    assert peer.engine.num_steps == 0


@pytest.mark.parametrize("zero", [0, "0", "0s", 0.0])
async def test_a_model_that_must_stay_is_not_unloaded(peer, zero):
    for path in ("/api/generate", "/api/chat"):
        response = await peer.post(path, json={"model": "scripted", "keep_alive": zero})
        assert response.status_code == 400
        assert "cannot be unloaded" in response.json()["error"]


async def test_unloading_is_told(peer, monkeypatch):
    unloaded = []

    async def unload(_self, name):
        unloaded.append(name)

    monkeypatch.setattr(OneModel, "unload", unload)
    answer = (await peer.post("/api/generate", json={"model": "scripted:latest", "keep_alive": 0})).json()
    assert (answer["done_reason"], answer["response"], unloaded) == ("unload", "", ["org/Scripted:Q4"])


async def test_keep_alive_is_handed_on(peer, monkeypatch):
    kept = []
    monkeypatch.setattr(OneModel, "keep", lambda _self, name, seconds: kept.append((name, seconds)))
    await answer_to(peer, "say:x", keep_alive="1h30m")
    await answer_to(peer, "say:x")
    await answer_to(peer, "", keep_alive=-1)
    assert kept == [("org/Scripted:Q4", 5400.0), ("org/Scripted:Q4", math.inf)]
