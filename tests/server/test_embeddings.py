"""Embeddings and reranking over HTTP, with real tiny encoders behind the app."""

from __future__ import annotations

import base64
import struct
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from byte_tokenizer import ByteTokenizer
from conftest import in_process

from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.engine.local_client import LocalEngineClient
from caudal.server.app import create_app
from caudal.server.settings import ServedModel, ServerSettings

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)
DATA = Path(__file__).parents[1] / "parity" / "data"


class SmallTokenizer(ByteTokenizer):
    """Letters as the 96 tokens that the tiny encoders know; 2 and 3 stand before and after a text."""

    vocab_size = 96

    def encode(self, text, *, add_special_tokens=True, parse_special=False):  # noqa: ARG002 - no special text
        ids = [4 + byte % 90 for byte in text.encode()]
        return [2, *ids, 3] if add_special_tokens else ids


@asynccontextmanager
async def serve(name):
    client = LocalEngineClient(load_engine(EngineConfig(model_path=str(DATA / f"{name}.gguf"), num_threads=1)))
    await client.start()
    app = create_app(client, SmallTokenizer(), ServedModel(name=name, created=1), ServerSettings())
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as http:
            yield http
    finally:
        await client.close()


async def vectors(http, given, **fields):
    response = await http.post("/v1/embeddings", json={"input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_every_form_of_input_gives_the_same_vector():
    async with serve("bert") as http:
        body = await vectors(http, "hello")
        assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
        assert body["data"][0]["index"] == 0
        one = body["data"][0]["embedding"]
        assert len(one) == 32
        assert abs(sum(x * x for x in one) - 1) < 1e-6
        ids = SmallTokenizer().encode("hello")
        assert (await vectors(http, ids))["data"][0]["embedding"] == one
        many = (await vectors(http, ["other", "hello", "hello"]))["data"]
        assert [each["index"] for each in many] == [0, 1, 2]
        assert many[1]["embedding"] == many[2]["embedding"] == one != many[0]["embedding"]
        assert (await vectors(http, [ids, ids]))["data"][1]["embedding"] == one


@pytest.mark.parametrize(("name", "size"), [("bert", 32), ("gemma-embedding", 40)])
async def test_base64_dimensions_and_length(name, size):
    async with serve(name) as http:
        plain = (await vectors(http, "hello"))["data"][0]["embedding"]
        packed = (await vectors(http, "hello", encoding_format="base64"))["data"][0]["embedding"]
        assert list(struct.unpack(f"<{size}f", base64.b64decode(packed))) == pytest.approx(plain, abs=1e-7)
        cut = (await vectors(http, "hello", dimensions=4))["data"][0]["embedding"]
        raw = (await vectors(http, "hello", normalize=False))["data"][0]["embedding"]
        length = sum(x * x for x in raw[:4]) ** 0.5
        assert cut == pytest.approx([x / length for x in raw[:4]])


async def test_other_dialects_give_the_same_vector():
    async with serve("bert") as http:
        vector = (await vectors(http, "hello"))["data"][0]["embedding"]
        raw = (await vectors(http, "hello", normalize=False))["data"][0]["embedding"]
        ollama = (await http.post("/api/embed", json={"model": "bert", "input": ["a", "hello"]})).json()
        assert (await http.post("/api/embed", json={"model": "bert", "input": []})).json()["embeddings"] == []
        assert ollama["embeddings"][1] == vector
        assert ollama["prompt_eval_count"] == 10
        old = (await http.post("/api/embeddings", json={"model": "bert", "prompt": "hello"})).json()
        assert old == {"embedding": raw}
        llama = (await http.post("/embedding", json={"content": ["a", "hello"]})).json()
        assert llama[1] == {"index": 1, "embedding": [vector]}
        plain = (await http.post("/embedding", json={"content": "hello", "embd_normalize": -1})).json()
        assert plain == [{"index": 0, "embedding": [raw]}]
        assert (await http.post("/embedding", json={"content": "hello", "embd_normalize": 1})).status_code == 400
        tags = (await http.get("/api/tags")).json()
        assert tags["models"][0]["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", 3]}, "input"),
        ({"input": "x" * 200}, "input"),
        ({"input": [96]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 33}, "dimensions"),
        ({}, None),
    ],
)
async def test_wrong_requests_name_the_field(fields, param):
    async with serve("bert") as http:
        response = await http.post("/v1/embeddings", json=fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert (await http.post("/embeddings", json={"input": "a"})).status_code == 200


async def test_a_model_that_reads_does_not_write_and_one_that_writes_does_not_embed(http):
    refused = await http.post("/v1/embeddings", json={"input": "a"})
    assert refused.status_code == 400
    assert "writes text" in refused.json()["error"]["message"]
    async with serve("bert") as encoder:
        chat = {"messages": [{"role": "user", "content": "x"}]}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "a"})):
            response = await encoder.post(path, json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
        assert (await encoder.post("/v1/rerank", json={"query": "a", "documents": ["b"]})).status_code == 400


async def test_documents_come_in_order_of_their_scores():
    async with serve("bert-reranker") as http:
        documents = ["river", "mountain", {"text": "sea"}, "a house"]
        body = {"query": "water", "documents": documents, "return_documents": True}
        answer = (await http.post("/v1/rerank", json=body)).json()
        scores = [result["relevance_score"] for result in answer["results"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score < 1 for score in scores)
        texts = ["river", "mountain", "sea", "a house"]
        assert [result["document"]["text"] for result in answer["results"]] == [
            texts[result["index"]] for result in answer["results"]
        ]
        best = (await http.post("/rerank", json={**body, "top_n": 1})).json()["results"]
        assert [result["index"] for result in best] == [answer["results"][0]["index"]]
        bare = (await http.post("/reranking", json={"query": "water", "texts": texts})).json()
        assert [result["index"] for result in bare] == [result["index"] for result in answer["results"]]
        alone = (await http.post("/v1/rerank", json={"query": "water", "documents": ["sea"]})).json()
        assert alone["results"][0]["relevance_score"] in scores


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": [{"title": "x"}]}, "documents"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["b" * 100]}, "documents"),
    ],
)
async def test_wrong_rerank_requests_name_the_field(fields, param):
    async with serve("bert-reranker") as http:
        response = await http.post("/v1/rerank", json=fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_too_many_texts_at_once():
    async with in_process(ServerSettings(max_open_requests=3)) as http:
        assert (await http.post("/v1/embeddings", json={"input": ["a"] * 4})).status_code == 400
    async with serve("bert") as http:
        assert len((await vectors(http, ["a"] * 200))["data"]) == 200
