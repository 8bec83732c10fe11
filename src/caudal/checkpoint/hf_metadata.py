"""Describes a Hugging Face folder in the keys of the GGUF specification.

For lists and descriptions alone, whose readers know these keys (llama-server's and Ollama's clients among them). What
is computed follows from the configuration itself; see models.from_hf.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_KEYS = MappingProxyType(
    {
        "max_position_embeddings": "context_length",
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "vocab_size": "vocab_size",
    }
)


def describe_config(
    path: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], template: str | None
) -> dict[str, Any]:
    """Return what the configurations say; what they do not say, or say wrongly, is absent.

    Args:
        path: of the folder.
        config: what config.json holds.
        tokenizer_config: what tokenizer_config.json holds.
        template: what chat_template.jinja holds, None if there is none.
    """
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    architecture = text.get("model_type")
    if not isinstance(architecture, str):
        return {}
    found: dict[str, Any] = {"general.architecture": architecture, "general.name": path.resolve().name}
    found |= {f"{architecture}.{ours}": text[key] for key, ours in _KEYS.items() if type(text.get(key)) is int}
    window = text.get("sliding_window")
    if type(window) is int and text.get("use_sliding_window") is not False:
        found[f"{architecture}.attention.sliding_window"] = window
    source = template or tokenizer_config.get("chat_template")
    if isinstance(source, str):
        found["tokenizer.chat_template"] = source
    kind = tokenizer_config.get("tokenizer_class")
    if isinstance(kind, str):
        found["tokenizer.ggml.model"] = kind
    return found
