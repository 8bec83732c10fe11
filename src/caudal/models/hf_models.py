"""One row per `model_type` of Hugging Face configurations: what their files leave unsaid.

Source: the configuration classes of the models' first implementations (transformers: llama, mistral, qwen2, qwen3,
gemma2, gemma3, phi3), whose defaults a published config.json may leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from caudal.checkpoint.hf_names import HFNames
from caudal.errors import UnsupportedArchitecture
from caudal.models.architectures import Architecture, find_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

WindowUse = Literal["never", "when there", "when asked"]


@dataclass(frozen=True, slots=True)
class HFModel:
    """How to read the checkpoints of one model type.

    Attributes:
        architecture: the row of models.architectures whose computation it is.
        names: of its tensors.
        defaults: keys of the configuration class that a config.json may leave out.
        norm_offset: added to the weights of all norms.
        ties_embeddings: whether the head is the embedding table where the file does not say; None: if it holds no head.
        window: whether `sliding_window` counts: "when asked" is where use_sliding_window says so.
    """

    architecture: str
    names: HFNames = field(default_factory=HFNames)
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    norm_offset: float = 0.0
    ties_embeddings: bool | None = None
    window: WindowUse = "never"

    @property
    def row(self) -> Architecture:
        """The architecture."""
        return find_architecture(self.architecture)


_SANDWICH = HFNames(
    {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)
_GEMMA = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

HF_MODELS: Mapping[str, HFModel] = MappingProxyType(
    {
        "llama": HFModel("llama"),
        "mistral": HFModel("llama", window="when there"),
        "qwen2": HFModel("qwen2", window="when asked"),
        "qwen3": HFModel("qwen3", window="when asked"),
        "gemma2": HFModel(
            "gemma2",
            names=_SANDWICH,
            defaults=_GEMMA | {"max_position_embeddings": 8192},
            norm_offset=1.0,
            ties_embeddings=True,
            window="when there",
        ),
        "gemma3_text": HFModel(
            "gemma3",
            names=_SANDWICH,
            defaults=_GEMMA | {"max_position_embeddings": 131072, "rope_theta": 1e6},
            norm_offset=1.0,
            ties_embeddings=True,
            window="when there",
        ),
        "phi3": HFModel("phi3", window="when there"),
    }
)


def find_hf_model(model_type: str, path: object = None) -> HFModel:
    """Return the row of a model type.

    Raises:
        UnsupportedArchitecture: there is none; names it, the file and the known ones.
    """
    if model_type not in HF_MODELS:
        known = ", ".join(HF_MODELS)
        fact = f"model_type {model_type!r} is not supported; expected one of {known}; use a model of these families"
        raise UnsupportedArchitecture(fact, path=path)
    return HF_MODELS[model_type]
