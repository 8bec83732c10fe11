"""A valid GGUF file, damaged at random: it still opens or it is a CheckpointError. Nothing else, and not for long."""

import tracemalloc

import numpy as np
import pytest
from factory import tiny_checkpoint
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from raw_gguf import ARRAY, F32, I32, STRING, U8, U16, U32, U64, array, gguf, pair, payload, tensor, text

from caudal.checkpoint.gguf_file import open_gguf
from caudal.errors import CheckpointError

PAIRS = [
    pair("general.architecture", STRING, "llama"),
    pair("general.alignment", U32, 32),
    array("tokens", STRING, ["a", "bc", "def", ""]),
    array("scores", F32, [0.5, -1.0]),
    array("types", I32, [1, 2, 3]),
    pair("flags", U8, 7),
    pair("split.count", U16, 1),
    pair("large", U64, 1 << 40),
]
TENSORS = [tensor("token_embd.weight", (32, 4)), tensor("q", (32, 2), 2, 512), tensor("k", (256,), 12, 576)]
VALID = gguf(PAIRS, TENSORS, bytes(range(256)) * 3)
MAX_PEAK_BYTES = 8 << 20

positions = st.integers(0, len(VALID) - 1)
# Counts and lengths that a parser likes to believe.
evil = st.sampled_from([0, 1, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63])
checked = settings(
    max_examples=150, deadline=5000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def open_damaged(path, raw):
    """Open the bytes; use all of a model that opens; bound the memory either way."""
    path.write_bytes(raw)
    refusal = None
    tracemalloc.start()
    try:
        with open_gguf(path) as model:
            for found in model.tensors.values():
                assert found.data.size == found.row_bytes * int(np.prod(found.shape[:-1]))
                assert found.dequantize().shape == found.shape
    except CheckpointError as error:
        refusal = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES
    assert refusal is None or (refusal.path == path and refusal.fact)


def test_the_seed_file_is_valid(tmp_path):
    path = tmp_path / "valid.gguf"
    path.write_bytes(VALID)
    with open_gguf(path) as model:
        assert len(model.metadata) == len(PAIRS)
        assert [t.format for t in model.tensors.values()] == ["F32", "Q4_0", "Q4_K"]


@checked
@given(st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes(tmp_path, changes):
    raw = bytearray(VALID)
    for position, value in changes:
        raw[position] = value
    open_damaged(tmp_path / "m.gguf", bytes(raw))


@checked
@given(st.integers(0, len(VALID) - 8), evil)
def test_words_that_lie(tmp_path, position, value):
    open_damaged(tmp_path / "m.gguf", VALID[:position] + value.to_bytes(8, "little") + VALID[position + 8 :])


@checked
@given(positions, positions, positions)
def test_splices(tmp_path, start, stop, at):
    start, stop = sorted((start, stop))
    open_damaged(tmp_path / "m.gguf", VALID[:at] + VALID[start:stop] + VALID[at:])
    open_damaged(tmp_path / "m.gguf", VALID[:start] + VALID[stop:])


@checked
@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes_after_the_magic(tmp_path, tail):
    open_damaged(tmp_path / "m.gguf", b"GGUF\3\0\0\0" + tail)


# Files whose structure is right and whose values are not.

names = st.text(max_size=70)
sizes = st.one_of(st.integers(-2, 70), st.sampled_from([256, 1 << 31, 1 << 62, (1 << 63) - 1]))
tensors = st.builds(
    tensor,
    names,
    st.lists(sizes, max_size=6),
    st.one_of(st.sampled_from([0, 1, 2, 12, 30]), st.integers(0, (1 << 32) - 1)),
    st.one_of(st.sampled_from([0, 32, 64, 100]), st.integers(0, (1 << 64) - 1)),
)
scalars = st.one_of(
    st.tuples(st.just(U32), st.integers(0, (1 << 32) - 1)),
    st.tuples(st.just(STRING), st.text(max_size=20)),
    st.tuples(st.just(F32), st.floats(width=32)),
)
keys = st.one_of(names, st.sampled_from(["general.alignment", "split.count", "split.no", "general.architecture"]))
pairs = st.one_of(
    st.builds(lambda key, value: pair(key, *value), keys, scalars),
    st.builds(
        lambda key, count, value: (
            text(key)
            + ARRAY.to_bytes(4, "little")
            + value[0].to_bytes(4, "little")
            + count.to_bytes(8, "little")
            + payload(*value) * min(count, 9)
        ),
        keys,
        evil,
        scalars,
    ),
)


@checked
@given(st.lists(pairs, max_size=5), st.lists(tensors, max_size=5), st.binary(max_size=300))
def test_well_formed_lies(tmp_path, made_pairs, made_tensors, data):
    open_damaged(tmp_path / "m.gguf", gguf(made_pairs, made_tensors, data))


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_model_file(tmp_path, seed):
    """A whole model with a tokenizer, with bytes of its header changed."""
    raw = bytearray(tiny_checkpoint(tmp_path, scheme="Q8_0").read_bytes())
    rng = np.random.default_rng(seed)
    for position in rng.integers(0, 12_000, rng.integers(1, 20)):
        raw[position] = rng.integers(0, 256)
    open_damaged(tmp_path / "m.gguf", bytes(raw))
