"""Encoders and pooled decoders: the same numbers as transformers, whatever else is in the step."""

from __future__ import annotations

import numpy as np
import pytest
from generate_encoders import CASES, DATA

from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.errors import CheckpointError, ConfigError, InvalidParameter, PromptTooLong
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

native = pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)
RERANKERS = [case.name for case in CASES if "reranker" in case.name]
ENCODERS = [*(case.name for case in CASES if case.name not in RERANKERS), "gemma-embedding"]


def reference(name):
    """Texts and what transformers gives for each: rows [T, n], or scores [1, labels]."""
    data = np.load(DATA / f"{name}.npz")
    texts = np.split(data["token_ids"], np.cumsum(data["lengths"])[:-1])
    if "reranker" not in name:
        return texts, np.split(data["outputs"], np.cumsum(data["lengths"])[:-1])
    return texts, list(data["outputs"][:, None])


def make_engine(name, **options):
    return load_engine(EngineConfig(**{"model_path": str(DATA / f"{name}.gguf"), "num_threads": 2, **options}))


def read(engine, texts, tenant=""):
    """Vectors of texts, read together."""
    for i, text in enumerate(texts):
        engine.add_request(
            AddRequest(
                request_id=f"{tenant}{i}",
                prompt_token_ids=[int(token) for token in text],
                params=SamplingParams(max_tokens=1),
                tenant=tenant,
            )
        )
    vectors = {}
    while engine.has_work:
        vectors |= {update.request_id: update.embedding for update in engine.step()}
    return [np.array(vectors[f"{tenant}{i}"], np.float32) for i in range(len(texts))]


def expected(rows, pooling):
    return {"cls": rows[0], "last": rows[-1], "mean": rows.mean(axis=0)}[pooling]


def distance(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize(
    ("options", "tolerance"), [({"backend": "reference"}, 1e-5), ({"exact": True}, 1e-5), ({}, 0.03)]
)
def test_vectors_are_those_of_transformers(name, pooling, options, tolerance):
    texts, rows = reference(name)
    for found, wanted in zip(read(make_engine(name, pooling=pooling, **options), texts), rows, strict=True):
        assert distance(found, expected(wanted, pooling)) < tolerance


@pytest.mark.parametrize("name", RERANKERS)
@pytest.mark.parametrize(
    ("options", "tolerance"), [({"backend": "reference"}, 1e-5), ({"exact": True}, 1e-5), ({}, 0.05)]
)
def test_scores_are_those_of_transformers(name, options, tolerance):
    texts, scores = reference(name)
    found = np.concatenate(read(make_engine(name, **options), texts))
    assert distance(found, np.concatenate(scores)[:, 0]) < tolerance


def test_the_file_says_how_rows_are_pooled():
    texts, rows = reference("bert")
    engine = make_engine("bert", exact=True)
    assert engine.ready_info().task == "embed"
    assert distance(read(engine, texts)[1], rows[1][0]) < 1e-5
    assert make_engine("bert-reranker").ready_info().task == "score"
    texts, rows = reference("gemma-embedding")
    assert distance(read(make_engine("gemma-embedding", exact=True), texts)[1], rows[1].mean(axis=0)) < 1e-5


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_a_text_alone_and_among_others_gives_the_same_bits(name, pooling):
    texts, _ = reference(name)
    alone = [read(make_engine(name, pooling=pooling, num_threads=1), [text])[0] for text in texts]
    together = read(make_engine(name, pooling=pooling, num_threads=3), [*texts, *reversed(texts)])
    for one, other, third in zip(alone, together, reversed(together), strict=False):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)


def test_what_cannot_be_read_is_refused():
    engine = make_engine("bert")
    params = SamplingParams(max_tokens=1)
    for ids, error in (
        ([], InvalidParameter),
        ([5] * 65, PromptTooLong),
        ([96], InvalidParameter),
        ([-1], InvalidParameter),
    ):
        with pytest.raises(error):
            engine.add_request(AddRequest(request_id="x", prompt_token_ids=ids, params=params))
    assert not engine.has_work
    with pytest.raises(ConfigError, match="max_model_len"):
        make_engine("bert", max_model_len=65)


def test_a_large_job_does_not_keep_another_tenant_waiting():
    engine = make_engine("bert", max_num_seqs=2)
    text = [5] * 30
    for i in range(50):
        engine.add_request(
            AddRequest(request_id=f"a{i}", prompt_token_ids=text, params=SamplingParams(max_tokens=1), tenant="a")
        )
    engine.step()
    engine.add_request(
        AddRequest(request_id="b", prompt_token_ids=text, params=SamplingParams(max_tokens=1), tenant="b")
    )
    assert "b" in [update.request_id for _ in range(2) for update in engine.step()]


def test_an_aborted_text_is_not_read():
    engine = make_engine("bert")
    for name in "ab":
        engine.add_request(AddRequest(request_id=name, prompt_token_ids=[5], params=SamplingParams(max_tokens=1)))
    assert engine.abort("a").finish_reason == "abort"
    assert engine.abort("a") is None
    assert [update.request_id for update in engine.step()] == ["b"]
    assert not engine.has_work


def test_a_broken_header_is_told(tmp_path):
    content = (DATA / "bert.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content.replace(b"bert.attention.layer_norm_epsilon", b"bert.attention.layer_norm_epsilom"))
    with pytest.raises(CheckpointError, match="layer_norm_epsilon"):
        load_engine(EngineConfig(model_path=str(broken)))
