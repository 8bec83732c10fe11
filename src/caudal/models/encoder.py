"""Encoders of the BERT family: embeddings and their norm, layers of attention and feed-forward network.

Source: Devlin et al., "BERT", 2018; Nussbaum et al., "Nomic Embed", 2024 (rotary positions, a gated network). Names of
tensors are those of the GGUF specification. Legend: T tokens of the step, R texts, D hidden size, F ffn size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.models.linears import place, take_fused, take_linear
from caudal.models.pooling_head import take_pooling_head

if TYPE_CHECKING:
    from caudal.backends.base import Array, Backend
    from caudal.checkpoint.weights import Weights
    from caudal.models.encoder_spec import EncoderSpec, Pooling


class Encoder:
    """An encoder on one backend. Its forward pass gives a vector or scores for every text.

    Args:
        spec: see below.
        weights: cursor at the root of its tensors.
        backend: where they go.
        pooling: which row stands for a text.

    Attributes:
        spec: what it is made of.
        lookup_bytes: weights of which a step reads single rows.

    Raises:
        MissingTensor, CheckpointError, UnusedTensors: the checkpoint does not hold what the spec says.
    """

    def __init__(self, spec: EncoderSpec, weights: Weights, backend: Backend, pooling: Pooling) -> None:
        self.spec = spec
        self._ops = backend
        width = spec.hidden_size
        placed_before = backend.weights_bytes
        self._words = backend.matrix(weights.take("token_embd.weight", (spec.vocab_size, width)))
        types = weights.take_optional("token_types.weight")
        self._types = None if types is None else backend.matrix(types)
        self._positions = None
        if spec.rope is None:
            self._positions = backend.matrix(weights.take("position_embd.weight", (spec.context_length, width)))
        self.lookup_bytes = backend.weights_bytes - placed_before
        self._norm = _Norm("token_embd_norm", spec, weights, backend)
        rope = None if spec.rope is None else backend.rope_table(spec.rope)
        self._layers = tuple(
            _Layer(spec, index, weights / "blk" / index, backend, rope) for index in range(spec.num_layers)
        )
        self._head = take_pooling_head(weights, width, pooling, backend)
        weights.finish()

    @property
    def scores(self) -> bool:
        """Whether it gives scores: the model is a reranker or a classifier."""
        return self._head.scores

    def forward(self, batch: Any) -> Array:
        """Run one step; `batch` is what the backend's compile hands over. Returns [R, n], or [R, labels]."""
        ops = self._ops
        x_TD = ops.embedding(self._words, batch)
        if self._types is not None:
            x_TD = ops.add(x_TD, ops.embedding(self._types, batch, source="first row"))
        if self._positions is not None:
            x_TD = ops.add(x_TD, ops.embedding(self._positions, batch, source="positions"))
        x_TD = self._norm(x_TD)
        for layer in self._layers:
            x_TD = layer(x_TD, batch)
        return self._head(x_TD, batch)


class _Norm:
    """A layer norm."""

    def __init__(self, name: str, spec: EncoderSpec, weights: Weights, ops: Backend) -> None:
        self._ops = ops
        self._eps = spec.norm_eps
        self._weight = ops.vector(weights.take(f"{name}.weight", (spec.hidden_size,)))
        self._bias = ops.vector(weights.take(f"{name}.bias", (spec.hidden_size,)))

    def __call__(self, x: Array) -> Array:
        return self._ops.layer_norm(x, self._weight, self._bias, self._eps)


class _Layer:
    """Attention and feed-forward network, each added to its input and then normed."""

    def __init__(self, spec: EncoderSpec, index: int, weights: Weights, ops: Backend, rope: Array | None) -> None:
        self._ops = ops
        self._spec = spec.attention(index)
        self._rope = rope
        size = spec.num_heads * spec.head_size
        if weights.has("attn_qkv.weight"):
            parts = take_fused(weights, "attn_qkv", (size, size, size), spec.hidden_size)
        else:
            parts = [take_linear(weights, name, size, spec.hidden_size) for name in ("attn_q", "attn_k", "attn_v")]
        self._qkv = place(parts, ops)
        self._output = place([take_linear(weights, "attn_output", spec.hidden_size, size)], ops)
        self._attention_norm = _Norm("attn_output_norm", spec, weights, ops)
        self._activation = spec.activation
        names = ("ffn_gate", "ffn_up") if spec.gated else ("ffn_up",)
        self._up = place([take_linear(weights, name, spec.ffn_size, spec.hidden_size) for name in names], ops)
        self._down = place([take_linear(weights, "ffn_down", spec.hidden_size, spec.ffn_size)], ops)
        self._output_norm = _Norm("layer_output_norm", spec, weights, ops)

    def __call__(self, x_TD: Array, batch: Any) -> Array:
        x_TD = self._attention_norm(self._ops.add(x_TD, self._attend(x_TD, batch)))
        return self._output_norm(self._ops.add(x_TD, self._feed_forward(x_TD)))

    def _attend(self, x_TD: Array, batch: Any) -> Array:
        ops, spec = self._ops, self._spec
        q_THd, k_THd, v_THd = ops.linear(self._qkv, x_TD)
        if self._rope is not None:
            q_THd = ops.rope(q_THd, self._rope, batch, spec.head_size)
            k_THd = ops.rope(k_THd, self._rope, batch, spec.head_size)
        (y_TD,) = ops.linear(self._output, ops.attention(q_THd, k_THd, v_THd, batch, spec))
        return y_TD

    def _feed_forward(self, x_TD: Array) -> Array:
        ops = self._ops
        first_TF, *up_TF = ops.linear(self._up, x_TD)
        inner_TF = ops.glu(first_TF, up_TF[0], self._activation) if up_TF else ops.activate(first_TF, self._activation)
        (y_TD,) = ops.linear(self._down, inner_TF)
        return y_TD
