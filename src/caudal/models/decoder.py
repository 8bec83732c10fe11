"""The general decoder: embedding, layers of attention and gated feed-forward network, norm, head.

Every block is complete when constructed from a Weights cursor. Which optional parts it has (biases, q/k norms, norms
after a sublayer, fused projections, a head of its own) follows from the tensors that are there.

Legend: T tokens of the step, L rows of logits, R texts, D hidden size, H query heads, K KV heads, d head size,
F ffn size, V vocabulary. Names of tensors are those of the GGUF specification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.models.linears import optional_vector, place, take_fused, take_linear
from caudal.models.pooling_head import take_pooling_head

if TYPE_CHECKING:
    from caudal.backends.base import Array, Backend
    from caudal.checkpoint.weights import Weights
    from caudal.models.encoder_spec import Pooling
    from caudal.models.spec import DecoderSpec


class Decoder:
    """A decoder-only transformer on one backend.

    Args:
        spec: what it is made of.
        weights: cursor at the root of its tensors.
        backend: where they go.
        pooling: which row stands for a text: the head is left out, and the forward pass gives a vector or scores for
            every text. None: the model writes.

    Attributes:
        spec: see above.
        lookup_bytes: weights of which a step reads single rows: an embedding table that is not the head as well.

    Raises:
        MissingTensor: a tensor that the spec needs is not there.
        CheckpointError: a tensor has another shape than the spec says; names both.
        UnusedTensors: the checkpoint holds tensors that this decoder has no place for.
    """

    def __init__(
        self, spec: DecoderSpec, weights: Weights, backend: Backend, *, pooling: Pooling | None = None
    ) -> None:
        self.spec = spec
        self._ops = backend
        embedding = weights.take("token_embd.weight", (spec.vocab_size, spec.hidden_size))
        placed_before = backend.weights_bytes
        self._embedding = backend.matrix(embedding)
        embedding_bytes = backend.weights_bytes - placed_before
        ropes = tuple(backend.rope_table(rope) for rope in spec.ropes)
        self._layers = tuple(
            _Layer(spec, index, weights / "blk" / index, backend, ropes[layer.rope])
            for index, layer in enumerate(spec.layers)
        )
        self._norm = backend.vector(weights.take("output_norm.weight", (spec.hidden_size,)))
        head = weights.take_optional("output.weight", embedding.shape)
        head_bias = weights.take_optional("output.bias", (spec.vocab_size,))
        self.lookup_bytes = 0 if head is None and pooling is None else embedding_bytes
        self._pooling = None if pooling is None else take_pooling_head(weights, spec.hidden_size, pooling, backend)
        self._head = None
        if pooling is None:
            matrix = self._embedding if head is None else backend.matrix(head)
            self._head = backend.linear_group([(matrix, None if head_bias is None else backend.vector(head_bias))])
        weights.finish()

    @property
    def scores(self) -> bool:
        """Whether it gives scores: the model is a reranker or a classifier."""
        return self._pooling is not None and self._pooling.scores

    def forward(self, batch: Any) -> Array:
        """Run one step; `batch` is what the backend's compile hands over.

        Returns logits [L, V]; of a pooled model vectors [R, n] or scores [R, labels].
        """
        spec, ops = self.spec, self._ops
        x_TD = ops.embedding(self._embedding, batch, spec.embed_scale)
        for layer in self._layers:
            x_TD = layer(x_TD, batch)
        if self._pooling is not None:
            return self._pooling(ops.rms_norm(x_TD, self._norm, spec.norm_eps), batch)
        x_LD = ops.rms_norm(ops.logit_rows(x_TD, batch), self._norm, spec.norm_eps)
        (logits_LV,) = ops.linear(self._head, x_LD)
        return logits_LV if spec.final_softcap is None else ops.softcap(logits_LV, spec.final_softcap)


class _Layer:
    """Attention and feed-forward network, each between norms and added to the residual stream."""

    def __init__(self, spec: DecoderSpec, index: int, weights: Weights, ops: Backend, rope: Array) -> None:
        self._ops = ops
        self._eps = spec.norm_eps
        width = spec.hidden_size
        for names in spec.required_tensors:
            if not any(weights.has(name) for name in names):
                weights.take(names[0], ())  # raises MissingTensor
        self._attention_norm = ops.vector(weights.take("attn_norm.weight", (width,)))
        self._attention = _Attention(spec, index, weights, ops, rope)
        self._post_attention_norm = optional_vector(weights, "post_attention_norm.weight", width, ops)
        self._ffn_norm = ops.vector(weights.take("ffn_norm.weight", (width,)))
        self._ffn = _FeedForward(spec, index, weights, ops)
        self._post_ffn_norm = optional_vector(weights, "post_ffw_norm.weight", width, ops)

    def __call__(self, x_TD: Array, batch: Any) -> Array:
        ops, eps = self._ops, self._eps
        y_TD = self._attention(ops.rms_norm(x_TD, self._attention_norm, eps), batch)
        if self._post_attention_norm is not None:
            y_TD = ops.rms_norm(y_TD, self._post_attention_norm, eps)
        x_TD = ops.add(x_TD, y_TD)
        y_TD = self._ffn(ops.rms_norm(x_TD, self._ffn_norm, eps))
        if self._post_ffn_norm is not None:
            y_TD = ops.rms_norm(y_TD, self._post_ffn_norm, eps)
        return ops.add(x_TD, y_TD)


class _Attention:
    """Grouped-query attention with rope and, where there are weights for it, a norm of every q and k head."""

    def __init__(self, spec: DecoderSpec, index: int, weights: Weights, ops: Backend, rope: Array) -> None:
        self._ops = ops
        self._eps = spec.norm_eps
        self._rope = rope
        self._spec = spec.attention(index)
        layer = spec.layers[index]
        q_size, kv_size = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
        if weights.has("attn_qkv.weight"):
            parts = take_fused(weights, "attn_qkv", (q_size, kv_size, kv_size), spec.hidden_size)
        else:
            sizes = {"attn_q": q_size, "attn_k": kv_size, "attn_v": kv_size}
            parts = [take_linear(weights, name, size, spec.hidden_size) for name, size in sizes.items()]
        self._qkv = place(parts, ops)
        self._q_norm = optional_vector(weights, "attn_q_norm.weight", layer.head_size, ops)
        self._k_norm = optional_vector(weights, "attn_k_norm.weight", layer.head_size, ops)
        self._output = place([take_linear(weights, "attn_output", spec.hidden_size, q_size)], ops)

    def __call__(self, x_TD: Array, batch: Any) -> Array:
        ops, spec = self._ops, self._spec
        q_THd, k_TKd, v_TKd = ops.linear(self._qkv, x_TD)
        if self._q_norm is not None:
            q_THd = ops.rms_norm(q_THd, self._q_norm, self._eps, spec.head_size)
        if self._k_norm is not None:
            k_TKd = ops.rms_norm(k_TKd, self._k_norm, self._eps, spec.head_size)
        q_THd = ops.rope(q_THd, self._rope, batch, spec.head_size)
        k_TKd = ops.rope(k_TKd, self._rope, batch, spec.head_size)
        y_THd = ops.attention(q_THd, k_TKd, v_TKd, batch, spec)
        (y_TD,) = ops.linear(self._output, y_THd)
        return y_TD


class _FeedForward:
    """down(activation(gate(x)) * up(x)). Without an `ffn_gate`, `ffn_up` holds the gate's rows, then its own."""

    def __init__(self, spec: DecoderSpec, index: int, weights: Weights, ops: Backend) -> None:
        self._ops = ops
        self._activation = spec.activation
        width, size = spec.hidden_size, spec.layers[index].ffn_size
        if weights.has("ffn_gate.weight"):
            parts = [take_linear(weights, name, size, width) for name in ("ffn_gate", "ffn_up")]
        else:
            parts = take_fused(weights, "ffn_up", (size, size), width)
        self._gate_up = place(parts, ops)
        self._down = place([take_linear(weights, "ffn_down", width, size)], ops)

    def __call__(self, x_TD: Array) -> Array:
        ops = self._ops
        gate_TF, up_TF = ops.linear(self._gate_up, x_TD)
        (y_TD,) = ops.linear(self._down, ops.glu(gate_TF, up_TF, self._activation))
        return y_TD
