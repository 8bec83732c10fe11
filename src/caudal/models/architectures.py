"""One row per architecture: what its files leave unsaid and its name implies.

Whatever a checkpoint does say (sizes, eps, thetas, softcaps, windows) is read from it, and biases, q/k norms,
sandwich norms, fused projections and tied heads follow from the tensors that are there. A new architecture of
this family is a new row.

Source: the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and, for what it does not
say, the configuration classes of the models' first implementations (transformers: llama, qwen2, qwen3, gemma2,
gemma3, phi3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.errors import UnsupportedArchitecture

if TYPE_CHECKING:
    from caudal.backends.base import Activation


@dataclass(frozen=True, slots=True)
class Architecture:
    """Overrides of one architecture. The defaults are those of most: pre-norm, SwiGLU, full causal attention.

    Attributes:
        name: `general.architecture` of a GGUF file.
        gguf_interleaved_rope: GGUF files hold q and k rows so ordered that rope rotates pairs (2i, 2i+1).
        activation: of the gated feed-forward network.
        scales_embedding: token embeddings are multiplied by sqrt(hidden_size).
        attention_softcap, final_softcap: used when the file gives none; None is off.
        window: sliding window used when the file gives none; None is full attention.
        window_period: which layers slide when the file does not say: 0 is all of them, 1 none, n all but each
            n-th. None: the family's files may name a window that its models do not use; ignore it.
        local_rope_theta: base of the rope of sliding layers when the file gives none; None: as the other layers.
        hidden_scaled_layers: models with this many layers scale attention by (hidden_size / num_heads) ** -0.5
            instead of head_size ** -0.5; their files do not say so.
        required_tensors: see DecoderSpec.
        is_causal: False: the model reads, and every token sees both ways. A window of the file is then one that tokens
            stand in the middle of: w reaches w // 2 tokens either way.
    """

    name: str
    gguf_interleaved_rope: bool = False
    activation: Activation = "silu"
    scales_embedding: bool = False
    attention_softcap: float | None = None
    final_softcap: float | None = None
    window: int | None = None
    window_period: int | None = None
    local_rope_theta: float | None = None
    hidden_scaled_layers: int | None = None
    required_tensors: tuple[tuple[str, ...], ...] = ()
    is_causal: bool = True


_QKV_BIAS = tuple((f"attn_{part}.bias", "attn_qkv.bias") for part in "qkv")
_QK_NORMS = (("attn_q_norm.weight",), ("attn_k_norm.weight",))
_POST_NORMS = (("post_attention_norm.weight",), ("post_ffw_norm.weight",))

ARCHITECTURES: tuple[Architecture, ...] = (
    # Llama 1-3, Mistral, SmolLM2, Yi and their kin. The converter permutes q and k rows into interleaved order.
    Architecture("llama", gguf_interleaved_rope=True, window_period=0),
    # Qwen2/2.5 and Qwen3 configurations name a window together with use_sliding_window = false.
    Architecture("qwen2", required_tensors=_QKV_BIAS),
    Architecture("qwen3", required_tensors=_QK_NORMS),
    Architecture(
        "gemma2",
        activation="gelu_tanh",
        scales_embedding=True,
        attention_softcap=50.0,
        final_softcap=30.0,
        window=4096,
        window_period=2,
        hidden_scaled_layers=46,  # 27B
        required_tensors=_POST_NORMS,
    ),
    Architecture(
        "gemma3",
        activation="gelu_tanh",
        scales_embedding=True,
        window_period=6,
        local_rope_theta=10000.0,
        hidden_scaled_layers=62,  # 27B
        required_tensors=_POST_NORMS + _QK_NORMS,
    ),
    Architecture("phi3", window_period=0),
    # EmbeddingGemma: Gemma 3 that reads. Its first implementation turns a window of 512 into distances below 257 when
    # it reads the configuration; files hold the 512.
    Architecture(
        "gemma-embedding",
        activation="gelu_tanh",
        scales_embedding=True,
        window_period=6,
        local_rope_theta=10000.0,
        required_tensors=_POST_NORMS + _QK_NORMS,
        is_causal=False,
    ),
)


def find_architecture(name: str, path: object = None) -> Architecture:
    """Return the row of architecture `name`.

    Raises:
        UnsupportedArchitecture: there is none; names it, the file and the known ones.
    """
    for row in ARCHITECTURES:
        if row.name == name:
            return row
    known = ", ".join(row.name for row in ARCHITECTURES)
    fact = f"architecture {name!r} is not supported; expected one of {known}; use a model of one of these families"
    raise UnsupportedArchitecture(fact, path=path)
