"""Native attention and means of texts against the reference, for every instruction set and kind of cache."""

from dataclasses import replace

import numpy as np
import pytest

from caudal.backends.base import AttentionSpec, KVLayer
from caudal.backends.cpu.cpu_backend import CpuBackend, available_isas
from caudal.backends.reference import ReferenceBackend
from caudal.checkpoint.tensor import Tensor
from caudal.engine.pooling_engine import whole_texts

BLOCK_SIZE = 16
LENGTHS = (1, 40, 700)  # of texts; the last makes three parts of 256 tokens
NUM_TOKENS = sum(LENGTHS)
HEAD_SIZE, NUM_HEADS = 32, 3
# With one KV head and three threads, tasks share the parts of the long text.
SPEC = AttentionSpec(layer=0, num_heads=NUM_HEADS, num_kv_heads=1, head_size=HEAD_SIZE, scale=0.3)
WINDOWS = (None, 1, 7, 100, 300, 1000)

each_isa = pytest.mark.parametrize("isa", available_isas())


def random_table(width, seed):
    """Rows for tokens: an embedding table whose tokens are all of a step's."""
    values = np.random.default_rng(seed).standard_normal((NUM_TOKENS, width), dtype=np.float32)
    return Tensor("table", "F32", values.shape, values.reshape(-1).view(np.uint8))


def native(isa, kv_dtype="f32", num_threads=3):
    return CpuBackend(num_threads=num_threads, max_tokens=NUM_TOKENS, exact=True, kv_dtype=kv_dtype, isa=isa)


def run(backend, lengths, forward, rows=None):
    """Run a step of whole texts, whose tokens are numbered through; `rows` are those that are wanted."""
    starts = np.cumsum([0, *lengths])
    texts = [list(range(begin, begin + length)) for begin, length in zip(starts, lengths, strict=False)]
    batch = whole_texts(texts, "mean", BLOCK_SIZE, 1)
    if rows is not None:
        batch = replace(batch, logit_rows=rows.astype(np.int32))
    num_blocks = int(batch.block_tables[0].max()) + 1
    cache = backend.kv_cache((KVLayer(0, 1, HEAD_SIZE, HEAD_SIZE),), (num_blocks,), BLOCK_SIZE)
    return np.array(backend.compile(forward, cache)(batch))


def attended(backend, spec, lengths=LENGTHS):
    """Attention of random queries, keys and values: [T, H*d]."""
    q, k, v = (
        backend.matrix(random_table(HEAD_SIZE * heads, seed)) for seed, heads in enumerate((NUM_HEADS, 1, 1), start=1)
    )

    def forward(batch):
        rows = [backend.embedding(table, batch) for table in (q, k, v)]
        return backend.logit_rows(backend.attention(*rows, batch, spec), batch)

    return run(backend, lengths, forward, np.arange(sum(lengths)))


@each_isa
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "int8"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("window", WINDOWS)
def test_attention_is_that_of_the_reference(isa, kv_dtype, is_causal, window):
    spec = replace(SPEC, window=window, is_causal=is_causal)
    expected = attended(ReferenceBackend(kv_dtype), spec)
    np.testing.assert_allclose(attended(native(isa, kv_dtype), spec), expected, atol=2e-5)


@each_isa
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_both_ways_have_the_same_bits_alone_and_however_tasks_share_them(isa, window):
    spec = replace(SPEC, window=window, is_causal=False)
    together = attended(native(isa), spec)
    np.testing.assert_array_equal(attended(native(isa, num_threads=1), spec), together)
    np.testing.assert_array_equal(attended(native(isa), spec, LENGTHS[:2]), together[: sum(LENGTHS[:2])])


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("width", [16, 40])
def test_means_have_the_bits_of_the_reference(num_threads, width):
    def means(backend):
        table = backend.matrix(random_table(width, 5))
        return run(backend, LENGTHS, lambda batch: backend.sequence_means(backend.embedding(table, batch), batch))

    np.testing.assert_array_equal(means(native(None, num_threads=num_threads)), means(ReferenceBackend()))
