"""Logits of tiny random models equal those of the original implementations, which generate_reference.py recorded."""

import pytest
from generate_reference import CASES, PROMPT_LENGTH, WINDOW
from parity_steps import BACKENDS, Sequence, load_case, make_backend, relative_error, run_sequences

# Float32 sums in another order; every mutation of test_mutations.py is ten times above.
TOLERANCE = 1e-4

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_backend = pytest.mark.parametrize("backend_name", BACKENDS)


@each_backend
@each_case
def test_whole_prompt_in_one_step(case, backend_name):
    backend = make_backend(backend_name)
    model, token_ids, expected = load_case(case, backend)
    (logits,) = run_sequences(model, backend, [Sequence(token_ids)])
    assert logits.shape == expected.shape
    assert relative_error(logits, expected) < TOLERANCE


@each_backend
@each_case
def test_chunks_of_several_sequences_in_shuffled_blocks(case, backend_name):
    backend = make_backend(backend_name)
    model, token_ids, expected = load_case(case, backend)
    sequences = [
        Sequence(token_ids, (7, 1, 1, 13, 2)),
        Sequence(token_ids[::-1], (1, 20, 1, 1, 1)),
        Sequence(token_ids, (16, 16, 1, 1, 1, 1, 1)),
    ]
    first, _, third = run_sequences(model, backend, sequences, seed=3)
    assert relative_error(first, expected) < TOLERANCE
    assert relative_error(third, expected) < TOLERANCE


@each_backend
@each_case
def test_one_token_at_a_time(case, backend_name):
    backend = make_backend(backend_name)
    model, token_ids, expected = load_case(case, backend)
    (logits,) = run_sequences(model, backend, [Sequence(token_ids, (1,) * PROMPT_LENGTH)])
    assert relative_error(logits, expected) < TOLERANCE


def test_prompts_are_longer_than_the_windows():
    assert WINDOW < PROMPT_LENGTH
    assert {"mistral", "gemma2", "gemma3", "phi3-long"} <= {case.name for case in CASES}


@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
@each_case
def test_backends_round_keys_and_values_alike(case, kv_dtype):
    """Float32 sums in another order may tip a rounding here and there; rounding otherwise would show everywhere."""
    logits = {}
    for name, dtype in (("reference", "f32"), ("reference", kv_dtype), ("cpu", kv_dtype)):
        backend = make_backend(name, dtype)
        model, token_ids, _ = load_case(case, backend)
        (logits[name, dtype],) = run_sequences(model, backend, [Sequence(token_ids, (20, 1, 5))])
    oracle = logits["reference", kv_dtype]
    error, cost = relative_error(logits["cpu", kv_dtype], oracle), relative_error(logits["reference", "f32"], oracle)
    assert error < cost / 3
