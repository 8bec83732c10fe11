"""The interface between a model and the machine it runs on.

A model calls these operations and nothing else, and never branches on values, so a backend may execute them at
once (reference) or record them and replay the recording every step (cpu).

Legend: T tokens of the step, L rows of logits, D hidden size, H query heads, K KV heads, d head size, F ffn size,
V vocabulary. An Array is a [T, n] or [L, n] float32 matrix in whatever form the backend keeps it; heads lie side
by side in a row, head h in columns [h*d, (h+1)*d).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from caudal.checkpoint.tensor import Tensor
    from caudal.engine.step_batch import StepBatch

Array = Any
Activation = Literal["silu", "gelu_tanh", "gelu"]
EmbeddingSource = Literal["tokens", "positions", "first row"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the first `rotary_dims` of each head.

    Attributes:
        inv_freq: rotary_dims / 2 angular frequencies in radians per position, scaling already applied.
        interleaved: pairs are (2i, 2i+1) if true, (i, i + rotary_dims/2) if false.
        attention_factor: multiplies cos and sin (longrope, yarn).
    """

    inv_freq: tuple[float, ...]
    rotary_dims: int
    interleaved: bool
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What one attention layer keeps per token, and in which KV group."""

    group: int
    num_kv_heads: int
    key_size: int
    value_size: int


KV_ELEMENT_BYTES = {"f16": 2, "f32": 4, "int8": 1}
KV_SCALE_BYTES = 2  # float16
KEY_SCALE_DIMS = 8


def paged_bytes_per_token(layer: KVLayer, dtype: str) -> int:
    """Return what a token's elements of one layer take, and their scales if they are int8."""
    num_scales = layer.num_kv_heads * (layer.key_size // KEY_SCALE_DIMS + 1) if dtype == "int8" else 0
    num_elements = layer.num_kv_heads * (layer.key_size + layer.value_size)
    return KV_ELEMENT_BYTES[dtype] * num_elements + KV_SCALE_BYTES * num_scales


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention.

    Attributes:
        layer: index into the KVLayers that the cache was made with.
        scale: multiplies q.k before the softcap and the softmax.
        softcap: cap * tanh(score / cap), or None.
        window: a query at p sees keys in (p - window, p]; None sees all before it.
        is_causal: False sees the sequence both ways, with a window the keys in (p - window, p + window); it must
            then come in one step.
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    is_causal: bool = True


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of L rows, as arrays; see SamplingParams for meanings.

    Attributes:
        temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty: [L] float32.
        top_k: [L] int32, 0 is all.
        seeds: [L] uint64; positions: [L] int64, position of the token being chosen. The random number of a row is
            a function of these two alone.
        history_starts: [L+1] int32 into history_ids; row l's history is prompt then answer. Empty for rows without
            penalties. num_prompt: [L] int32, how many of the row's history are prompt.
        history_ids: int32.
        bias_starts: [L+1] int32 into bias_ids (int32) and bias_values (float32): numbers added to logits; -inf bans.
        num_logprobs: [L] int32, -1 off, else how many alternatives to report.
        rows: [L] int32, which row of the logits each refers to.
        masks: [M, ceil(V / 32)] uint32: bit i % 32 of word i // 32 says whether token i may be chosen; None: no row
            has a mask.
        mask_rows: [L] int32, which mask a row has; -1 for none.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    typical_p: NDArray[np.float32]
    repetition_penalty: NDArray[np.float32]
    presence_penalty: NDArray[np.float32]
    frequency_penalty: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]
    history_starts: NDArray[np.int32]
    num_prompt: NDArray[np.int32]
    history_ids: NDArray[np.int32]
    bias_starts: NDArray[np.int32]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    num_logprobs: NDArray[np.int32]
    rows: NDArray[np.int32]
    masks: NDArray[np.uint32] | None = None
    mask_rows: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """Chosen tokens of L rows. Log-probabilities are of the raw logits, before temperature and penalties.

    Attributes:
        token_ids: [L] int32.
        logprobs: [L] float32 and ranks: [L] int32 (1 is the likeliest), valid where num_logprobs >= 0.
        top_ids: [L, M] int32 and top_logprobs: [L, M] float32, likeliest first, M the largest num_logprobs.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]


class Backend(Protocol):
    """The operations. Ties in every choice go to the lower token id.

    Attributes:
        name: as in EngineConfig.backend.
        isa: the instruction set or device that computes, for people to read.
        num_threads: of the CPU.
        kv_dtype: what the KV cache holds: "f16", "f32" or "int8".
        weights_bytes: of all matrices placed so far.
        mapped_bytes: those of them that are in the page cache, which counts as free memory.
    """

    name: str
    isa: str
    num_threads: int
    kv_dtype: str
    weights_bytes: int

    @property
    def mapped_bytes(self) -> int:
        """See above."""

    # At load.

    def vector(self, tensor: Tensor) -> Array:
        """Place a vector (a norm's weight) as float32."""

    def matrix(self, tensor: Tensor) -> Array:
        """Place one matrix [n, m]: an embedding table, or a projection without bias. May be used as both."""

    def linear_group(self, parts: Sequence[tuple[Array, Array | None]]) -> Array:
        """Group projections of the same input: (matrix, bias vector or None) each."""

    def rope_table(self, spec: RopeSpec) -> Array:
        """Place a rotary embedding."""

    def loaded(self) -> None:
        """Take note that every weight has been placed."""

    def kv_cache(self, layers: Sequence[KVLayer], num_blocks: Sequence[int], block_size: int) -> Any:
        """Reserve a paged KV cache: one pool of num_blocks[g] blocks per group.

        An int8 cache keeps round(x / s) * s within 127 s, where s is the float16 of the largest magnitude / 127 among
        KEY_SCALE_DIMS dimensions of one token's key and head, or among all of its value.
        """

    def kv_bytes_per_token(self, layer: KVLayer) -> int:
        """Bytes of the cache that a token takes in one layer."""

    def compile(self, forward: Callable[[Any], Array], kv_cache: Any) -> Callable[[StepBatch], NDArray[np.float32]]:
        """Make a step function from forward(batch) -> logits [L, V]. The result is valid until the next call."""

    # In a forward pass. `batch` is what compile hands to forward.

    def embedding(self, matrix: Array, batch: Any, scale: float = 1.0, source: EmbeddingSource = "tokens") -> Array:
        """Rows of the matrix for the step's token ids, for their positions, or its first row; times scale: [T, D]."""

    def linear(self, group: Array, x: Array) -> tuple[Array, ...]:
        """x @ W.T + b for every part of the group."""

    def rms_norm(self, x: Array, weight: Array | None, eps: float, group_size: int | None = None) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight over each group of `group_size` columns (a head), or the whole row."""

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over each row."""

    def rope(self, x: Array, table: Array, batch: Any, head_size: int) -> Array:
        """Rotate every head of x by its token's position."""

    def attention(self, q: Array, k: Array, v: Array, batch: Any, spec: AttentionSpec) -> Array:
        """Write k and v to the cache at the step's slots, then attend: [T, H*d]."""

    def glu(self, gate: Array, up: Array, activation: Activation) -> Array:
        """activation(gate) * up."""

    def activate(self, x: Array, activation: Activation) -> Array:
        """activation(x)."""

    def add(self, x: Array, y: Array) -> Array:
        """x + y."""

    def softcap(self, x: Array, cap: float) -> Array:
        """cap * tanh(x / cap)."""

    def logit_rows(self, x: Array, batch: Any) -> Array:
        """The rows of x whose logits are wanted: [L, D]."""

    def sequence_means(self, x: Array, batch: Any) -> Array:
        """The mean of every sequence's rows of x, added up in order in float64: [R, D].

        Sequences come whole, and as many rows of logits are wanted as there are sequences.
        """

    # After it.

    def sample(self, logits: NDArray[np.float32], sampling: SamplingBatch) -> SampleOutput:
        """Choose tokens; backends/reference_sampling.py defines how, to the bit.

        Penalties and bias first; then temperature 0 takes the largest logit, else temperature, top_k, top_p, min_p
        and typical_p in this order, and a draw from what is left. A row without a finite logit gives -1.
        """
