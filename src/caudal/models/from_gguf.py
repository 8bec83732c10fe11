"""Fills a DecoderSpec from a GGUF header.

Source: the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), keys `[arch].*`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.backends.base import RopeSpec
from caudal.errors import CheckpointError, UnsupportedArchitecture
from caudal.models import rope
from caudal.models.architectures import Architecture, find_architecture
from caudal.models.checked_keys import MAX_LAYERS, MAX_SIZE, MAX_TOKENS, CheckedKeys
from caudal.models.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from caudal.checkpoint.gguf_file import GGUFFile
    from caudal.checkpoint.weights import Weights

# Bounds of YaRN's betas, far outside what anyone uses.
MIN_TURNS = 1e-6


def read_spec(checkpoint: GGUFFile, weights: Weights, max_model_len: int | None = None) -> DecoderSpec:
    """Read what the header says, and fill in what its architecture implies.

    Takes the tensors that hold rope factors from `weights`; the decoder takes the others.

    Args:
        checkpoint: an open file.
        weights: cursor at the root of its tensors.
        max_model_len: tokens that a sequence may have; picks the factors of longrope, and makes a window that is not
            shorter full attention. The model's context length if None.

    Raises:
        UnsupportedArchitecture: no row for the architecture, or a variant of it that Caudal does not have.
        CheckpointError: a key is missing, has the wrong type or makes no sense.
    """
    name = CheckedKeys(checkpoint.metadata, path=checkpoint.path).str("general.architecture")
    row = find_architecture(name, checkpoint.path)
    return _GGUFSpec(row, checkpoint, weights, max_model_len).read()


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Attention's shapes per layer, and the one head size."""

    num_heads: tuple[int, ...]
    num_kv_heads: tuple[int, ...]
    head_size: int


class _GGUFSpec:
    """The reading of one file."""

    def __init__(self, row: Architecture, checkpoint: GGUFFile, weights: Weights, max_model_len: int | None) -> None:
        self._row = row
        self._keys = CheckedKeys(checkpoint.metadata, row.name, path=checkpoint.path)
        self._weights = weights
        self._path = checkpoint.path
        self._context_length = self._keys.size("context_length")
        self._max_model_len = max_model_len or self._context_length

    def read(self) -> DecoderSpec:
        keys, row = self._keys, self._row
        self._refuse_variants()
        hidden_size = self._keys.size("embedding_length")
        num_layers = self._keys.checked("block_count", keys.int("block_count"), MAX_LAYERS)
        shapes = self._shapes(hidden_size, num_layers)
        ffn_sizes = self._keys.sizes("feed_forward_length", keys.ints("feed_forward_length", num_layers))
        windows = self._windows(num_layers)
        main_rope, local_rope = self._ropes(shapes.head_size)
        layer_ropes = [main_rope if window is None else local_rope for window in windows]
        ropes = tuple(dict.fromkeys(layer_ropes))
        scale = self._attention_scale(hidden_size, num_layers, shapes)
        layers = tuple(
            LayerSpec(
                num_heads=shapes.num_heads[index],
                num_kv_heads=shapes.num_kv_heads[index],
                head_size=shapes.head_size,
                ffn_size=ffn_sizes[index],
                attention_scale=scale,
                window=self._shortened(windows[index]),
                rope=ropes.index(layer_ropes[index]),
            )
            for index in range(num_layers)
        )
        return DecoderSpec(
            architecture=row.name,
            vocab_size=self._vocab_size(),
            hidden_size=hidden_size,
            context_length=self._context_length,
            norm_eps=self._keys.positive("attention.layer_norm_rms_epsilon"),
            layers=layers,
            ropes=ropes,
            activation=row.activation,
            embed_scale=math.sqrt(hidden_size) if row.scales_embedding else 1.0,
            attention_softcap=self._keys.softcap("attn_logit_softcapping", row.attention_softcap),
            final_softcap=self._keys.softcap("final_logit_softcapping", row.final_softcap),
            required_tensors=row.required_tensors,
            is_causal=row.is_causal,
        )

    def _refuse_variants(self) -> None:
        """Fail on what changes the meaning of the model and has no place in the spec."""
        if self._keys.int("expert_count", 0):
            fact = f"this {self._row.name} model is a mixture of experts, which is not supported; use a dense model"
            raise UnsupportedArchitecture(fact, path=self._path)
        is_causal = self._row.is_causal
        if self._keys.bool("attention.causal", is_causal) is not is_causal:
            wanted = "causal" if is_causal else "not causal"
            fact = f"{self._row.name}.attention.causal is {not is_causal}; models of this architecture must be {wanted}"
            raise UnsupportedArchitecture(fact, path=self._path)

    def _vocab_size(self) -> int:
        """Rows of the embedding table, unless the file names a size; then the table must agree."""
        table = self._weights.take("token_embd.weight")
        rows = self._keys.checked("vocab_size", table.shape[0], MAX_SIZE)
        return self._keys.checked("vocab_size", self._keys.int("vocab_size", rows), MAX_SIZE)

    def _shapes(self, hidden_size: int, num_layers: int) -> _Shapes:
        keys = self._keys
        heads = self._keys.sizes("attention.head_count", keys.ints("attention.head_count", num_layers))
        kv_key = "attention.head_count_kv"
        kv_heads = self._keys.sizes(kv_key, keys.ints(kv_key, num_layers, heads))
        for query_count, kv_count in zip(heads, kv_heads, strict=True):
            if query_count % kv_count:
                self._keys.fail(kv_key, kv_count, f"a divisor of attention.head_count, {query_count}")
        head_size = self._keys.checked(
            "attention.key_length", keys.int("attention.key_length", hidden_size // heads[0])
        )
        value_size = keys.int("attention.value_length", head_size)
        if value_size != head_size:
            self._keys.fail("attention.value_length", value_size, f"attention.key_length, {head_size}")
        return _Shapes(heads, kv_heads, head_size)

    def _attention_scale(self, hidden_size: int, num_layers: int, shapes: _Shapes) -> float:
        by_hidden = num_layers == self._row.hidden_scaled_layers
        implied = (hidden_size / shapes.num_heads[0] if by_hidden else float(shapes.head_size)) ** -0.5
        return self._keys.positive("attention.scale", implied)

    def _windows(self, num_layers: int) -> tuple[int | None, ...]:
        """The window of every layer as the model was made, None for full attention."""
        window = self._keys.int("attention.sliding_window", self._row.window)
        if not window or self._row.window_period is None:
            return (None,) * num_layers
        self._keys.checked("attention.sliding_window", window, MAX_TOKENS)
        if not self._row.is_causal:
            window = window // 2 + 1
        return tuple(window if slides else None for slides in self._sliding_layers(num_layers))

    def _sliding_layers(self, num_layers: int) -> tuple[bool, ...]:
        """Whether each layer has a window: from the file (a list, or a period), else from the architecture."""
        key = "attention.sliding_window_pattern"
        period = self._row.window_period
        assert period is not None
        if self._keys.has(key):
            try:
                period = self._keys.int(key)
            except CheckpointError:
                return self._keys.bools(key, num_layers)
        if period < 0:
            self._keys.fail(key, period, "a period of layers")
        return tuple(period == 0 or index % period < period - 1 for index in range(num_layers))

    def _shortened(self, window: int | None) -> int | None:
        """Drop a window that no sequence can outgrow."""
        return None if window is None or window >= self._max_model_len else window

    def _ropes(self, head_size: int) -> tuple[RopeSpec, RopeSpec]:
        """The ropes of full and of sliding layers. A base of their own frees sliding layers from all scaling."""
        dims = self._keys.int("rope.dimension_count", head_size)
        if not 0 < dims <= head_size or dims % 2:
            self._keys.fail("rope.dimension_count", dims, f"an even number up to the head size, {head_size}")
        theta = self._keys.rope_base("rope.freq_base", 10000.0)
        interleaved = self._row.gguf_interleaved_rope
        frequencies, attention_factor = self._scaled_frequencies(theta, dims)
        if not all(0 <= value < math.inf for value in (*frequencies, attention_factor)):
            self._keys.fail("rope.scaling", f"such that a frequency is {max(frequencies)}", "finite frequencies")
        main = RopeSpec(frequencies, dims, interleaved, attention_factor)
        local_theta = self._keys.float("rope.freq_base_swa", self._row.local_rope_theta)
        if local_theta is None:
            return main, main
        local_theta = self._keys.rope_base("rope.freq_base_swa", local_theta)
        return main, RopeSpec(rope.plain_frequencies(local_theta, dims), dims, interleaved)

    def _scaled_frequencies(self, theta: float, dims: int) -> tuple[tuple[float, ...], float]:
        """Frequencies after scaling, and the multiplier of cos and sin."""
        keys = self._keys
        frequencies = rope.plain_frequencies(theta, dims)
        if self._weights.has("rope_freqs.weight"):  # llama3 scaling, worked out by the converter
            frequencies = rope.divided(frequencies, self._rope_factors("rope_freqs.weight", dims))
        attention_factor = keys.float("rope.scaling.attn_factor", None)
        original_key = "rope.scaling.original_context_length"
        original = self._keys.checked(original_key, keys.int(original_key, self._context_length), MAX_TOKENS)
        if self._weights.has("rope_factors_short.weight") or self._weights.has("rope_factors_long.weight"):
            if original < 2:
                self._keys.fail(original_key, original, "at least 2")
            if attention_factor is None:
                attention_factor = rope.longrope_attention_factor(self._context_length, original)
            return rope.divided(frequencies, self._longrope_divisors(dims, original)), attention_factor
        kind = keys.str("rope.scaling.type", "linear")
        old_factor = keys.float("rope.scale_linear", 0.0)
        # 0 stands for no scaling in files that exist.
        factor = keys.float("rope.scaling.factor", old_factor) or 1.0
        attention_factor = 1.0 if attention_factor is None else attention_factor
        if not 0 < factor < math.inf:
            self._keys.fail("rope.scaling.factor", factor, "a positive number")
        if kind == "yarn":
            frequencies = self._yarn(frequencies, theta, factor, original)
            return frequencies, attention_factor * rope.yarn_attention_factor(factor)
        if kind not in {"none", "linear"}:
            self._keys.fail("rope.scaling.type", kind, "none, linear or yarn (longrope with its tensors of factors)")
        divisor = factor if kind == "linear" else 1.0
        return tuple(frequency / divisor for frequency in frequencies), attention_factor

    def _yarn(self, frequencies: tuple[float, ...], theta: float, factor: float, original: int) -> tuple[float, ...]:
        for key in ("yarn_ext_factor", "yarn_attn_factor"):
            if self._keys.float(f"rope.scaling.{key}", 1.0) != 1.0:
                self._keys.fail(f"rope.scaling.{key}", self._keys.float(f"rope.scaling.{key}"), "1")
        if self._keys.float("rope.scaling.yarn_log_multiplier", 0.0):
            self._keys.fail("rope.scaling.yarn_log_multiplier", "there", "none for this architecture")
        beta_fast = self._keys.positive("rope.scaling.yarn_beta_fast", 32.0)
        beta_slow = self._keys.positive("rope.scaling.yarn_beta_slow", 1.0)
        if not MIN_TURNS < beta_slow < beta_fast < 1 / MIN_TURNS:
            self._keys.fail("rope.scaling.yarn_beta_slow", beta_slow, f"less than yarn_beta_fast, {beta_fast}")
        if theta <= 1:
            self._keys.fail("rope.freq_base", theta, "more than 1")
        return rope.yarn_frequencies(
            frequencies,
            theta=theta,
            factor=factor,
            original_context=original,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
        )

    def _longrope_divisors(self, dims: int, original: int) -> tuple[float, ...]:
        """Take both tensors and return the one for the sequences that this model will see.

        The choice holds for all sequences, so that their keys stay comparable and cacheable.
        """
        short = self._rope_factors("rope_factors_short.weight", dims)
        long = self._rope_factors("rope_factors_long.weight", dims)
        return long if self._max_model_len > original else short

    def _rope_factors(self, name: str, dims: int) -> tuple[float, ...]:
        """Read a small tensor of divisors of the frequencies."""
        factors = tuple(self._weights.take(name, (dims // 2,)).dequantize().tolist())
        if not all(factor > 0 for factor in factors):
            fact = f"tensor {name!r} holds {min(factors)}; expected positive numbers"
            raise CheckpointError(fact, path=self._path)
        return factors
