"""llama-server's routes: method, path, handler. Those that OpenAI's clients use too stay in OpenAI's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.llamacpp.completion import completion, either_completions
from caudal.server.llamacpp.embedding import embedding
from caudal.server.llamacpp.infill import infill
from caudal.server.llamacpp.props import change_props, change_slot, lora_adapters, props, slots
from caudal.server.llamacpp.router import (
    add_model,
    load_model,
    model_events,
    remove_model,
    set_lora_adapters,
    unload_model,
)
from caudal.server.llamacpp.text_routes import apply_template, input_tokens, tokenizer_info

if TYPE_CHECKING:
    from caudal.server.call import Handler

    Row = tuple[str, str, Handler]

LLAMACPP: tuple[Row, ...] = (
    ("POST", "/completion", completion),
    ("POST", "/infill", infill),
    ("GET", "/props", props),
    ("POST", "/props", change_props),
    ("GET", "/slots", slots),
    ("POST", "/slots/{slot_id}", change_slot),
    ("GET", "/lora-adapters", lora_adapters),
    ("POST", "/lora-adapters", set_lora_adapters),
    ("POST", "/apply-template", apply_template),
    ("GET", "/tokenizer_info", tokenizer_info),
    ("POST", "/chat/completions/input_tokens", input_tokens),
    ("POST", "/v1/chat/completions/input_tokens", input_tokens),
    ("GET", "/models/sse", model_events),
    ("POST", "/models/load", load_model),
    ("POST", "/models/unload", unload_model),
    ("POST", "/models", add_model),
    ("DELETE", "/models", remove_model),
    ("POST", "/embedding", embedding),
)

SHARED: tuple[Row, ...] = (("POST", "/completions", either_completions),)
"""A path with two meanings; its errors are OpenAI's until the body shows that it is llama-server's."""
