"""What an encoder is made of, and how one vector or score comes of its rows. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from caudal.backends.base import AttentionSpec, KVLayer

if TYPE_CHECKING:
    from caudal.backends.base import Activation, RopeSpec

Pooling = Literal["cls", "mean", "last"]
"""Which row of a text stands for it: the first, the mean of all, or the last."""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """A transformer whose tokens see the whole text, with a norm after every sublayer.

    Attributes:
        architecture: the name that the checkpoint gives.
        context_length: tokens that the model was made for.
        norm_eps: epsilon of every layer norm.
        rope: rotary embedding of q and k; None where positions have a table of their own.
        gated: the feed-forward network is down(activation(gate(x)) * up(x)), else down(activation(up(x))).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    head_size: int
    ffn_size: int
    context_length: int
    norm_eps: float
    activation: Activation
    rope: RopeSpec | None
    gated: bool

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The window of every KV group: one, without a window."""
        return (None,)

    def kv_layers(self) -> tuple[KVLayer, ...]:
        """Return what each layer keeps per token while its text is computed."""
        return (KVLayer(0, self.num_heads, self.head_size, self.head_size),) * self.num_layers

    @property
    def macs_per_token(self) -> int:
        """Products of a token with the weights of all layers."""
        matrices = 3 if self.gated else 2
        return self.num_layers * self.hidden_size * (4 * self.num_heads * self.head_size + matrices * self.ffn_size)

    @property
    def macs_per_logits(self) -> int:
        """There is no head."""
        return 0

    @property
    def macs_per_context_token(self) -> int:
        """Products of attention for each token that a query sees."""
        return self.num_layers * 2 * self.num_heads * self.head_size

    def attention(self, index: int) -> AttentionSpec:
        """Return the attention of layer `index` as a backend wants it."""
        return AttentionSpec(
            layer=index,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_size=self.head_size,
            scale=self.head_size**-0.5,
            is_causal=False,
        )
