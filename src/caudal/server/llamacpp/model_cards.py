"""What llama-server adds to a model's entry in /models: figures, status and modalities; and Ollama's list beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.server.model_events import LOADED, ModelStatus
from caudal.server.ollama.capabilities import capabilities_of

if TYPE_CHECKING:
    from caudal.server.context import ServerContext
    from caudal.server.settings import ServedModel

_VOCAB_TYPES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5}


def meta_of(model: ServedModel) -> dict[str, Any]:
    """Return the figures of a model's file."""
    facts = model.facts
    return {
        "vocab_type": _VOCAB_TYPES.get(str(facts.metadata.get("tokenizer.ggml.model")), 0),
        "n_vocab": facts.vocab_size,
        "n_ctx_train": facts.context_length,
        "n_embd": facts.hidden_size,
        "n_params": facts.num_parameters,
        "size": facts.size_bytes,
    }


def status_of(context: ServerContext, model: ServedModel) -> ModelStatus:
    """Return a model's state."""
    found = (status for status in context.models.statuses() if status.name == model.name)
    return next(found, ModelStatus(name=model.name))


def status_value(status: ModelStatus) -> dict[str, Any]:
    """Return a state as llama-server writes it. One that is on its way out is still loaded to its clients."""
    value = LOADED if status.state == "unloading" else status.state
    return {"value": value, **({"failed": True} if status.error else {})}


def card_extras(context: ServerContext, model: ServedModel) -> dict[str, Any]:
    """Return the fields that stand beside OpenAI's in an entry of /models."""
    return {
        "aliases": list(model.aliases),
        "tags": [],
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "status": status_value(status_of(context, model)),
        "meta": meta_of(model),
    }


def listed_model(model: ServedModel, name: str) -> dict[str, Any]:
    """Return an entry of the list beside OpenAI's, which is in Ollama's form."""
    facts = model.facts
    return {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": str(facts.size_bytes),
        "digest": facts.digest,
        "type": "model",
        "description": "",
        "tags": [],
        "capabilities": capabilities_of(facts.chat_template, fills_in_the_middle=facts.fills_in_the_middle),
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": facts.container,
            "family": facts.architecture,
            "families": [facts.architecture] if facts.architecture else [],
            "parameter_size": "",
            "quantization_level": facts.quantization,
        },
    }
