"""Texts that cannot fit the context are refused by their length: one thread tokenizes for everybody."""

from __future__ import annotations

import re

import pytest
from byte_tokenizer import ByteTokenizer
from conftest import in_process
from drawn_pieces import sse_events
from peer_app import TemplateTokenizer, peer_app
from test_embeddings import DATA, SmallTokenizer

import caudal.server.loaded_model
from caudal.config import EngineConfig
from caudal.engine.load import load_engine

LONG = "x" * 70_000
"""More than the 512 tokens of the scripted engine can hold, of which the longest has 7 bytes."""
MEMBER = [{"role": "user", "content": LONG}]


class Measuring(TemplateTokenizer):
    """Writes down the longest text that it was given."""

    def __init__(self):
        self.longest = 0

    def encode(self, text, **options):
        self.longest = max(self.longest, len(text))
        return super().encode(text, **options)


class Plain(Measuring):
    chat_template_source = ""


ANSWERING = [
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": ["x", LONG]}),
    ("/v1/chat/completions", {"messages": MEMBER}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f", "description": LONG}}],
        },
    ),
    ("/v1/messages", {"messages": MEMBER, "max_tokens": 5}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "system": LONG, "max_tokens": 5}),
    ("/v1/responses", {"input": LONG}),
    ("/completion", {"prompt": LONG}),
    ("/completion", {"prompt": [5, LONG]}),
    ("/infill", {"input_prefix": LONG, "input_suffix": "x"}),
    ("/infill", {"input_prefix": "x", "input_extra": [{"filename": "a", "text": LONG}]}),
    ("/api/chat", {"messages": MEMBER}),
    ("/api/generate", {"prompt": LONG}),
    ("/api/generate", {"prompt": LONG, "raw": True}),
    ("/api/generate", {"prompt": "x", "suffix": LONG}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERING)
async def test_what_cannot_fit_is_not_tokenized(path, body):
    tokenizer = Measuring()
    async with peer_app(tokenizer) as http:
        response = await http.post(path, json={"model": "scripted", **body})
    assert response.status_code == 400
    assert "at least 100" in response.text or re.search(r"100\d\d tokens(,| > 511 maximum)", response.text)
    assert tokenizer.longest < len(LONG)


async def test_a_streamed_response_tells_it_in_its_stream():
    """Where Codex looks for it."""
    async with in_process() as http:
        response = await http.post("/v1/responses", json={"model": "scripted", "input": LONG, "stream": True})
    name, data = sse_events(response.content)[-1]
    assert (name, data["response"]["error"]["code"]) == ("response.failed", "context_length_exceeded")


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("bert", "/v1/embeddings", {"input": ["x", LONG]}),
        ("bert", "/api/embed", {"input": LONG}),
        ("bert", "/embedding", {"content": LONG}),
        ("bert-reranker", "/v1/rerank", {"query": "x", "documents": [LONG]}),
        ("bert-reranker", "/v1/rerank", {"query": LONG, "documents": ["x"]}),
    ],
)
async def test_models_that_read_have_the_same_bound(name, path, body):
    class MeasuringSmall(SmallTokenizer):
        longest = 0

        def encode(self, text, **options):
            MeasuringSmall.longest = max(MeasuringSmall.longest, len(text))
            return super().encode(text, **options)

    engine = load_engine(EngineConfig(model_path=str(DATA / f"{name}.gguf"), num_threads=1))
    async with in_process(tokenizer=MeasuringSmall(), engine=engine) as http:
        response = await http.post(path, json={"model": "scripted", **body})
    assert response.status_code == 400
    assert "at least 100" in response.text or "has 10000 tokens," in response.text
    assert MeasuringSmall.longest < len(LONG)


COUNTING = [
    ("/tokenize", {"prompt": LONG}),
    ("/tokenize", {"content": LONG}),
    ("/tokenize", {"content": ["x", LONG]}),
    ("/tokenize", {"messages": MEMBER}),
    ("/detokenize", {"tokens": [120] * len(LONG)}),
    ("/v1/messages/count_tokens", {"messages": MEMBER}),
    ("/v1/responses/input_tokens", {"input": LONG}),
    ("/v1/chat/completions/input_tokens", {"messages": MEMBER}),
]


@pytest.mark.parametrize(("path", "body"), COUNTING)
async def test_what_is_only_counted_has_a_bound_of_its_own(monkeypatch, path, body):
    tokenizer = Plain()
    async with peer_app(tokenizer) as http:
        response = await http.post(path, json={"model": "scripted", **body})
        assert response.status_code == 200, response.text
        monkeypatch.setattr(caudal.server.loaded_model, "MAX_COUNTED_CHARS", len(LONG) - 1)
        tokenizer.longest = 0
        response = await http.post(path, json={"model": "scripted", **body})
    assert response.status_code == 400
    assert "at most 69999" in response.text
    assert tokenizer.longest < len(LONG)


async def test_no_text_that_fits_is_refused():
    """Every token of it is the longest one."""

    class Long(ByteTokenizer):
        def encode(self, text, **_):
            return [0] * (len(text) // 1000)

        def token_bytes(self, token_id):
            return b"x" * 1000 if token_id == 0 else super().token_bytes(token_id)

    async with in_process(tokenizer=Long(), max_model_len=512) as http:
        body = {"prompt": "x" * 511_000, "max_tokens": 1}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        too_long = {"prompt": "x" * 512_001, "max_tokens": 1}
        error = (await http.post("/v1/completions", json=too_long)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "at least 513 tokens" in error["message"]
