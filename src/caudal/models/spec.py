"""What a decoder is made of: sizes, windows, ropes and scalars. Pure data, filled from a checkpoint's header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.backends.base import AttentionSpec, KVLayer

if TYPE_CHECKING:
    from caudal.backends.base import Activation, RopeSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer.

    Attributes:
        num_heads, num_kv_heads, head_size: attention's shape; keys and values have the same head size.
        ffn_size: width of the feed-forward network.
        attention_scale: multiplies q.k.
        window: a query at p sees keys in (p - window, p], or in (p - window, p + window) of a model that is not causal;
            None sees all.
        rope: index into DecoderSpec.ropes.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    attention_scale: float
    window: int | None
    rope: int


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer.

    Attributes:
        architecture: the name that the checkpoint gives.
        context_length: tokens that the model was made for.
        norm_eps: epsilon of every RMS norm.
        embed_scale: multiplies the token embeddings.
        attention_softcap, final_softcap: cap * tanh(x / cap) of attention scores and of logits; None is off.
        ropes: the distinct rotary embeddings of the layers.
        required_tensors: of each of these tuples of names, every layer must hold one. They are optional parts in
            general, but without them this architecture is wrong.
        is_causal: False: tokens see what comes after them too, so that texts are only read, and whole.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    context_length: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    activation: Activation = "silu"
    embed_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    required_tensors: tuple[tuple[str, ...], ...] = ()
    is_causal: bool = True

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The window of every KV group: full attention first if any layer has it, then each distinct window.

        A model with sliding layers only has its first window as group 0. One that is not causal has one group: nothing
        falls out of a window while its texts come whole.
        """
        if not self.is_causal:
            return (None,)
        distinct = dict.fromkeys(layer.window for layer in self.layers)
        full: tuple[int | None, ...] = (None,) if None in distinct else ()
        return full + tuple(window for window in distinct if window is not None)

    def kv_layers(self) -> tuple[KVLayer, ...]:
        """Return what each layer keeps per token and in which KV group, in layer order."""
        windows = self.kv_windows
        return tuple(
            KVLayer(
                windows.index(layer.window) if self.is_causal else 0,
                layer.num_kv_heads,
                layer.head_size,
                layer.head_size,
            )
            for layer in self.layers
        )

    @property
    def macs_per_token(self) -> int:
        """Products of a token with the weights of all layers."""
        width = self.hidden_size
        return sum(
            width * (2 * layer.head_size * (layer.num_heads + layer.num_kv_heads) + 3 * layer.ffn_size)
            for layer in self.layers
        )

    @property
    def macs_per_logits(self) -> int:
        """Products of a token with the head's weights."""
        return self.hidden_size * self.vocab_size

    @property
    def macs_per_context_token(self) -> int:
        """Products of attention for each token that a query sees, in the layers that see all."""
        return sum(2 * layer.num_heads * layer.head_size for layer in self.layers if layer.window is None)

    def attention(self, index: int) -> AttentionSpec:
        """Return the attention of layer `index` as a backend wants it."""
        layer = self.layers[index]
        return AttentionSpec(
            layer=index,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_size=layer.head_size,
            scale=layer.attention_scale,
            softcap=self.attention_softcap,
            window=layer.window,
            is_causal=self.is_causal,
        )
