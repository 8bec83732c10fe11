"""The reference backend: numpy, float32, obvious. Every other backend is tested against this one.

Weights are dequantised at load, so it needs four bytes a parameter; speed is not its business.

Legend: T tokens of the step, R sequences, S visible keys, L rows of logits, D hidden size, H query heads, K KV heads,
d head size, V vocabulary, N slots of a KV pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from caudal.backends.base import KEY_SCALE_DIMS
from caudal.backends.reference_sampling import sample_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from caudal.backends.base import (
        Activation,
        AttentionSpec,
        EmbeddingSource,
        KVLayer,
        RopeSpec,
        SampleOutput,
        SamplingBatch,
    )
    from caudal.checkpoint.tensor import Tensor
    from caudal.engine.step_batch import StepBatch

    F32 = NDArray[np.float32]
    LinearGroup = tuple[tuple[F32, F32 | None], ...]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Frequencies [rotary_dims/2] and how to apply them."""

    inv_freq: NDArray[np.float64]
    rotary_dims: int
    interleaved: bool
    attention_factor: float


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of every layer: one array [N, K, d] each, N = blocks of the layer's group * block_size."""

    layers: tuple[KVLayer, ...]
    keys: tuple[F32, ...]
    values: tuple[F32, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What forward receives as its batch: the step's arrays and the cache."""

    batch: StepBatch
    kv: PagedKV


class ReferenceBackend:
    """Implements backends.base.Backend with numpy. Operations run as they are called; nothing is recorded."""

    name = "reference"
    isa = "numpy"
    num_threads = 1

    def __init__(self, kv_dtype: str = "f32") -> None:
        self.kv_dtype = kv_dtype
        self.weights_bytes = 0
        self.mapped_bytes = 0

    def vector(self, tensor: Tensor) -> F32:
        """Return the tensor's values as one row."""
        return tensor.dequantize().reshape(-1)

    def matrix(self, tensor: Tensor) -> F32:
        """Return the tensor's values [n, m]."""
        matrix = tensor.dequantize().reshape(tensor.shape)
        self.weights_bytes += matrix.nbytes
        return matrix

    def linear_group(self, parts: Sequence[tuple[F32, F32 | None]]) -> LinearGroup:
        """Keep the parts together."""
        return tuple(parts)

    def rope_table(self, spec: RopeSpec) -> RopeTable:
        """Keep the frequencies in float64, so that angles are exact at large positions."""
        inv_freq = np.array(spec.inv_freq, np.float64)
        return RopeTable(inv_freq, spec.rotary_dims, spec.interleaved, spec.attention_factor)

    def loaded(self) -> None:
        """Nothing is kept for loading."""

    def kv_cache(self, layers: Sequence[KVLayer], num_blocks: Sequence[int], block_size: int) -> PagedKV:
        """Allocate the pools in float32, whatever they round to; NaN shows a read of a slot that was never written."""
        slots = [num_blocks[layer.group] * block_size for layer in layers]
        shapes = [(count, layer.num_kv_heads) for count, layer in zip(slots, layers, strict=True)]
        keys = [np.full((*s, n.key_size), np.nan, np.float32) for s, n in zip(shapes, layers, strict=True)]
        values = [np.full((*s, n.value_size), np.nan, np.float32) for s, n in zip(shapes, layers, strict=True)]
        return PagedKV(tuple(layers), tuple(keys), tuple(values))

    def kv_bytes_per_token(self, layer: KVLayer) -> int:
        """Return the size of the float32 numbers."""
        return 4 * layer.num_kv_heads * (layer.key_size + layer.value_size)

    def compile(self, forward: Callable[[Step], F32], kv_cache: PagedKV) -> Callable[[StepBatch], F32]:
        """Return a function that runs forward on a step as it is."""

        def step(batch: StepBatch) -> F32:
            return forward(Step(batch, kv_cache))

        return step

    def embedding(self, matrix: F32, batch: Step, scale: float = 1.0, source: EmbeddingSource = "tokens") -> F32:
        """Return rows of the matrix, scaled: [T, D]."""
        ids = batch.batch.token_ids
        rows = {"tokens": ids, "positions": batch.batch.positions, "first row": np.zeros_like(ids)}[source]
        result: F32 = matrix[rows] * np.float32(scale)
        return result

    def linear(self, group: LinearGroup, x: F32) -> tuple[F32, ...]:
        """Return x @ W.T + b of every part."""
        return tuple(x @ w.T if b is None else x @ w.T + b for w, b in group)

    def rms_norm(self, x: F32, weight: F32 | None, eps: float, group_size: int | None = None) -> F32:
        """Normalise each group of columns by its root mean square."""
        grouped = x if group_size is None else x.reshape(len(x), -1, group_size)
        mean_square = np.mean(grouped * grouped, axis=-1, keepdims=True)
        normed = grouped / np.sqrt(mean_square + np.float32(eps))
        result: F32 = (normed if weight is None else normed * weight).reshape(x.shape)
        return result

    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        """Normalise each row by its mean and variance."""
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        result: F32 = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
        return result

    def rope(self, x: F32, table: RopeTable, batch: Step, head_size: int) -> F32:
        """Rotate pairs of the first rotary_dims of each head by position * frequency."""
        angles = batch.batch.positions[:, None].astype(np.float64) * table.inv_freq
        cos = (np.cos(angles) * table.attention_factor).astype(np.float32)[:, None]
        sin = (np.sin(angles) * table.attention_factor).astype(np.float32)[:, None]
        out = x.reshape(len(x), -1, head_size).copy()
        half, dims = table.rotary_dims // 2, table.rotary_dims
        first = np.s_[..., 0:dims:2] if table.interleaved else np.s_[..., :half]
        second = np.s_[..., 1:dims:2] if table.interleaved else np.s_[..., half:dims]
        a, b = out[first].copy(), out[second].copy()
        out[first] = a * cos - b * sin
        out[second] = b * cos + a * sin
        return out.reshape(x.shape)

    def attention(self, q: F32, k: F32, v: F32, batch: Step, spec: AttentionSpec) -> F32:
        """Write this step's k and v, then attend each sequence to what it may see: [T, H*d]."""
        kv, step = batch.kv, batch.batch
        layer = kv.layers[spec.layer]
        keys, values = kv.keys[spec.layer], kv.values[spec.layer]
        slots = step.slot_mapping[layer.group]
        k_TKd = k.reshape(len(k), layer.num_kv_heads, layer.key_size)
        v_TKd = v.reshape(len(v), layer.num_kv_heads, layer.value_size)
        keys[slots] = _as_kept(k_TKd, self.kv_dtype, KEY_SCALE_DIMS)
        values[slots] = _as_kept(v_TKd, self.kv_dtype, layer.value_size)
        q_THd = q.reshape(len(q), spec.num_heads, spec.head_size)
        out = np.empty((len(q), spec.num_heads, layer.value_size), np.float32)
        table = step.block_tables[layer.group]
        for row, context_len in enumerate(step.context_lens):
            tokens = slice(step.query_starts[row], step.query_starts[row + 1])
            positions = step.positions[tokens]
            start = 0 if spec.window is None else max(0, int(positions[0]) - spec.window + 1)
            seen = np.arange(start, context_len)
            blocks, offsets = np.divmod(seen, step.block_size)
            assert (table[row, blocks] >= 0).all(), "a visible key's block is missing from the block table"
            slots = table[row, blocks] * step.block_size + offsets
            mask_TS = _visible(positions, seen, spec)
            out[tokens] = _attend(q_THd[tokens], keys[slots], values[slots], mask_TS, spec)
        return out.reshape(len(q), -1)

    def glu(self, gate: F32, up: F32, activation: Activation) -> F32:
        """Return activation(gate) * up."""
        return _activate(gate, activation) * up

    def activate(self, x: F32, activation: Activation) -> F32:
        """Return activation(x)."""
        return _activate(x, activation)

    def add(self, x: F32, y: F32) -> F32:
        """Return x + y."""
        return x + y

    def softcap(self, x: F32, cap: float) -> F32:
        """Return cap * tanh(x / cap)."""
        result: F32 = np.float32(cap) * np.tanh(x / np.float32(cap))
        return result

    def logit_rows(self, x: F32, batch: Step) -> F32:
        """Return the rows whose logits are wanted."""
        return x[batch.batch.logit_rows]

    def sequence_means(self, x: F32, batch: Step) -> F32:
        """Return the mean of every sequence's rows."""
        rows = (x[begin:end] for begin, end in pairwise(batch.batch.query_starts))
        return np.stack([each.mean(axis=0, dtype=np.float64) for each in rows]).astype(np.float32)

    def sample(self, logits: F32, sampling: SamplingBatch) -> SampleOutput:
        """Choose tokens; reference_sampling.py defines how, to the bit."""
        return sample_rows(logits, sampling)


def _as_kept(x_TKd: F32, dtype: str, scale_dims: int) -> F32:
    """Round keys or values as a cache of this type does; int8 with a scale for every `scale_dims` dimensions."""
    if dtype == "f32":
        return x_TKd
    x_TKd = x_TKd.clip(-65504, 65504)
    if dtype == "f16":
        return x_TKd.astype(np.float16).astype(np.float32)
    x_TKgd = x_TKd.reshape(*x_TKd.shape[:2], -1, scale_dims)
    scale = (np.abs(x_TKgd).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    result: F32 = (np.rint(x_TKgd * inverse).clip(-127, 127) * scale).reshape(x_TKd.shape)
    return result


def _visible(positions: NDArray[np.int32], seen: NDArray[np.int64], spec: AttentionSpec) -> NDArray[np.bool_]:
    """[T, S]: whether the query at positions[t] sees the key at seen[s]."""
    distance = positions[:, None] - seen
    visible = (distance >= 0) | (not spec.is_causal)
    return visible if spec.window is None else visible & (np.abs(distance) < spec.window)


def _attend(q_THd: F32, k_SKd: F32, v_SKd: F32, mask_TS: NDArray[np.bool_], spec: AttentionSpec) -> F32:
    """Softmax attention of one sequence; query head h reads KV head h // (H / K)."""
    repeats = spec.num_heads // spec.num_kv_heads
    k_SHd, v_SHd = np.repeat(k_SKd, repeats, axis=1), np.repeat(v_SKd, repeats, axis=1)
    scores_HTS = np.einsum("thd,shd->hts", q_THd, k_SHd) * np.float32(spec.scale)
    if spec.softcap is not None:
        scores_HTS = np.float32(spec.softcap) * np.tanh(scores_HTS / np.float32(spec.softcap))
    scores_HTS = np.where(mask_TS, scores_HTS, np.float32(-np.inf))
    weights_HTS = np.exp(scores_HTS - scores_HTS.max(axis=-1, keepdims=True))
    weights_HTS /= weights_HTS.sum(axis=-1, keepdims=True)
    result: F32 = np.einsum("hts,shd->thd", weights_HTS, v_SHd)
    return result


def _activate(x: F32, activation: Activation) -> F32:
    """Apply silu, or gelu in its exact or its tanh form (Hendrycks and Gimpel, 2016)."""
    one, half = np.float32(1), np.float32(0.5)
    if activation == "silu":
        with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
            gate: F32 = one / (one + np.exp(-x))
        return x * gate
    if activation == "gelu_tanh":
        inner: F32 = np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x))
        return half * x * (one + inner)
    # numpy has no error function.
    inner = np.array([math.erf(value / math.sqrt(2)) for value in x.ravel().tolist()], np.float32).reshape(x.shape)
    return half * x * (one + inner)
