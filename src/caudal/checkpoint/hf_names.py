"""What tensors of Hugging Face checkpoints are called in GGUF files, whose names the models use.

Sources: the state dictionaries of the models' first implementations (transformers), and the GGUF specification,
"Standardized tensor names".
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Modules of the whole model, and of a layer, without ".weight" or ".bias".
_MODEL = MappingProxyType({"embed_tokens": "token_embd", "norm": "output_norm"})
_LAYER = MappingProxyType(
    {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)
_HEAD = ("lm_head", "output")
_IN_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")
_OUTSIDE = re.compile(r"(.+)\.(weight|bias)")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
# Before the names of a text model inside one that sees or hears as well: new and old order.
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
_HEAD_PREFIXES = ("language_model.", "")
# Parts that text does not pass through, and what older exporters wrote out though it follows from the configuration.
_OTHERS = re.compile(
    r"(?:model\.)?(?:visual|vision_tower|vision_model|multi_modal_projector|audio_tower|embed_vision|embed_audio)\."
    r"|.*\.rotary_emb\.inv_freq$|.*\.self_attn\.(?:k|v)_scale$"
)


class HFNames:
    """The names of one architecture.

    Args:
        overrides: modules of a layer that this architecture calls differently, or means something else by.
    """

    def __init__(self, overrides: Mapping[str, str] = MappingProxyType({})) -> None:
        self._layer = {**_LAYER, **overrides}
        self._stored: dict[str, str] = {}
        for stored, canonical in (*overrides.items(), *_LAYER.items()):
            self._stored.setdefault(canonical, stored)

    def canonical(self, stored: str) -> str | None:
        """Return the name in GGUF files; the same name if there is none; None if text does not pass through it."""
        if _OTHERS.match(stored):
            return None
        for prefix in _HEAD_PREFIXES:
            module, _, kind = stored.removeprefix(prefix).rpartition(".")
            if module == _HEAD[0]:
                return f"{_HEAD[1]}.{kind}"
        for prefix in _PREFIXES:
            if stored.startswith(prefix):
                return self._inner(stored[len(prefix) :]) or stored
        return stored

    def stored(self, canonical: str) -> str:
        """Return a name as a checkpoint spells it, for messages."""
        block = _BLOCK.fullmatch(canonical)
        if block is not None:
            return f"model.layers.{block[1]}.{self._stored.get(block[2], block[2])}.{block[3]}"
        module, _, kind = canonical.rpartition(".")
        outside = {other: f"model.{own}" for own, other in _MODEL.items()} | {_HEAD[1]: _HEAD[0]}
        return f"{outside[module]}.{kind}" if module in outside else canonical

    def _inner(self, name: str) -> str | None:
        """Return the name in GGUF files of what is inside the text model."""
        layer = _IN_LAYER.fullmatch(name)
        if layer is not None:
            module = self._layer.get(layer[2])
            return None if module is None else f"blk.{int(layer[1])}.{module}.{layer[3]}"
        outside = _OUTSIDE.fullmatch(name)
        if outside is None or outside[1] not in _MODEL:
            return None
        return f"{_MODEL[outside[1]]}.{outside[2]}"
