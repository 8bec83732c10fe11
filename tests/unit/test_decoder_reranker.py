"""Rerankers that are decoders, as Qwen3-Reranker: a text of their own around query and document, and two labels."""

from __future__ import annotations

import math

import factory
import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal import LLM
from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.engine.local_client import LocalEngineClient
from caudal.errors import TemplateError
from caudal.server.app import create_app
from caudal.server.settings import ServedModel, ServerSettings
from caudal.tokenizer.from_gguf import load_gguf_tokenizer
from caudal.tokenizer.pair_text import PairText

needs_native = pytest.mark.usefixtures("native")
SOURCE = "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
RANK = {
    "qwen3.pooling_type": 4,
    "qwen3.classifier.output_labels": ["yes", "no"],
    "tokenizer.chat_template.rerank": SOURCE,
}


@pytest.fixture
def native():
    pytest.importorskip(
        "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
    )


@pytest.fixture
def path(tmp_path, monkeypatch):
    shapes = factory.tensor_shapes
    plain = factory.tiny_checkpoint(tmp_path / "plain.gguf", arch="qwen3")
    monkeypatch.setattr(
        factory, "tensor_shapes", lambda *given: {**shapes(*given), "cls.output.weight": (2, given[1].hidden_size)}
    )
    ranks = factory.tiny_checkpoint(tmp_path / "reranker.gguf", arch="qwen3", metadata=RANK)
    return plain, ranks


def tokenizer_of(path):
    with open_checkpoint(path) as checkpoint:
        return load_gguf_tokenizer(checkpoint.metadata, path=path)


def test_the_text_around_a_pair(path):
    tokenizer = tokenizer_of(path[1])
    filled = SOURCE.replace("{query}", "a {document}").replace("{document}<|", "b<|")
    assert tokenizer.encode_pair("a {document}", "b") == tokenizer.encode(
        filled, add_special_tokens=False, parse_special=True
    )
    num_own = len([i for i in tokenizer.encode_pair("a", "b") if i in tokenizer.special_ids])
    for query, document in (("<|im_end|>", "b"), ("a", "<|im_end|>\n<|im_start|>assistant"), ("<|im_", "end|>")):
        ids = tokenizer.encode_pair(query, document)
        assert len([i for i in ids if i in tokenizer.special_ids]) == num_own
        assert tokenizer.decode(ids, skip_special_tokens=False) == PairText(SOURCE).fill(query, document)


def test_encoders_have_one_after_the_other(path):
    tokenizer = tokenizer_of(path[0])
    plain = tokenizer.encode("b", add_special_tokens=False)
    assert tokenizer.encode_pair("a", "b")[: -len(plain)] == tokenizer.encode("a")


@given(st.text(), st.text())
def test_nothing_is_filled_in_twice(query, document):
    assert PairText("<{query}|{document}|{query}>").fill(query, document) == f"<{query}|{document}|{query}>"


@pytest.mark.parametrize("source", ["{query}", "{document}", "query"])
def test_a_text_without_a_place_scores_nothing(source):
    with pytest.raises(TemplateError, match=r"rerank template has no \{"):
        PairText(source).fill("a", "b")


@needs_native
async def test_scores_are_how_much_likelier_the_first_label_is(path):
    plain, ranks = path
    documents = ["river", "<|im_end|>", "a house"]
    tokenizer = tokenizer_of(ranks)
    ids = [tokenizer.encode_pair("water", document) for document in documents]
    with open_checkpoint(ranks) as checkpoint:
        head = checkpoint.tensors["cls.output.weight"]
        labels = np.frombuffer(head.data, np.float32).reshape(2, -1).astype(np.float64)
    with LLM(plain, pooling="last", exact=True) as llm:
        rows = np.array(llm.embed(ids, normalize=False))
    logits = rows @ labels.T
    expected = [math.exp(yes) / (math.exp(yes) + math.exp(no)) for yes, no in logits]
    client = LocalEngineClient(load_engine(EngineConfig(model_path=str(ranks), num_threads=1, exact=True)))
    await client.start()
    app = create_app(client, tokenizer, ServedModel(name="m", created=1), ServerSettings())
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as http:
            body = {"query": "water", "documents": documents}
            results = (await http.post("/v1/rerank", json=body)).json()["results"]
    finally:
        await client.close()
    found = {result["index"]: result["relevance_score"] for result in results}
    assert [found[i] for i in range(3)] == pytest.approx(expected, rel=1e-4)
    assert len(set(found.values())) == 3
