"""Folders that transformers wrote give the logits that transformers gives, and the spec of the same model as GGUF."""

import pytest
from generate_reference import CASES, DATA
from parity_steps import BACKENDS, Sequence, load_case, make_backend, relative_error, run_sequences

from caudal.checkpoint import open_checkpoint
from caudal.models.load import load_model

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.mark.parametrize("backend_name", BACKENDS)
@each_case
def test_logits(case, backend_name):
    backend = make_backend(backend_name)
    gguf, token_ids, expected = load_case(case, backend)
    model = load_model(open_checkpoint(DATA / case.name), backend, case.max_model_len)
    (logits,) = run_sequences(model, backend, [Sequence(token_ids)])
    assert relative_error(logits, expected) < 1e-4
    (same,) = run_sequences(gguf, backend, [Sequence(token_ids)])
    assert relative_error(logits, same) < 1e-4


@each_case
def test_spec(case):
    backend = make_backend("reference")
    theirs, _, _ = load_case(case, backend)
    ours = load_model(open_checkpoint(DATA / case.name), backend, case.max_model_len)
    assert [(layer.window, layer.head_size, layer.ffn_size) for layer in ours.spec.layers] == [
        (layer.window, layer.head_size, layer.ffn_size) for layer in theirs.spec.layers
    ]
    for one, other in zip(ours.spec.ropes, theirs.spec.ropes, strict=True):
        assert one.inv_freq == pytest.approx(other.inv_freq, rel=1e-6)
        assert one.attention_factor == pytest.approx(other.attention_factor, rel=1e-6)
