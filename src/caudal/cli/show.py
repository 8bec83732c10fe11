"""`caudal show MODEL`: what a model says about itself. Reads headers alone."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from caudal.backends.base import KVLayer, paged_bytes_per_token
from caudal.checkpoint import open_checkpoint
from caudal.cli.list_models import human_bytes
from caudal.cli.options import ModelFirst, json_option, model_option
from caudal.hub.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.checkpoint import Checkpoint

# Key of the report -> key of the file's metadata, under the architecture's prefix.
DIMENSIONS = {
    "context_length": "context_length",
    "num_layers": "block_count",
    "hidden_size": "embedding_length",
    "feed_forward_size": "feed_forward_length",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "sliding_window": "attention.sliding_window",
}


def describe(model: Checkpoint) -> dict[str, Any]:
    """Gather what `show` prints, ready for JSON. A fact that the file does not state is None."""
    metadata = model.metadata
    architecture = metadata.get("general.architecture")
    tokens = metadata.get("tokenizer.ggml.tokens")
    template = metadata.get("tokenizer.chat_template")
    elements: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for tensor in model.stored.values():
        elements[tensor.format] += _num_elements(tensor.shape)
        stored[tensor.format] += tensor.data.nbytes
    num_parameters = elements.total()
    return {
        "path": str(model.path),
        "name": metadata.get("general.name"),
        "container": model.container,
        "architecture": architecture,
        "license": metadata.get("general.license"),
        "num_parameters": num_parameters,
        **{name: _plain(metadata.get(f"{architecture}.{key}")) for name, key in DIMENSIONS.items()},
        "kv_bytes_per_token": _kv_bytes_per_token(metadata),
        "weights_bytes": stored.total(),
        "bits_per_weight": round(8 * stored.total() / num_parameters, 2) if num_parameters else None,
        "formats": {
            name: {"num_parameters": elements[name], "bytes": stored[name]} for name, _ in stored.most_common()
        },
        "num_tensors": len(model.stored),
        "vocab_size": metadata.get(f"{architecture}.vocab_size") if tokens is None else len(tokens),
        "tokenizer": metadata.get("tokenizer.ggml.model"),
        "pre_tokenizer": metadata.get("tokenizer.ggml.pre"),
        "chat_template": template if isinstance(template, str) else None,
    }


def _num_elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _kv_bytes_per_token(metadata: Mapping[str, Any]) -> dict[str, int] | None:
    """Return what a token takes in the KV cache by type, as long as no window lets go of it; None if it is not said."""

    def number(key: str) -> int | None:
        value = metadata.get(f"{metadata.get('general.architecture')}.{key}")
        return value if isinstance(value, int) else None

    layers, heads, hidden = number("block_count"), number("attention.head_count"), number("embedding_length")
    if not layers or not heads or not hidden:
        return None
    kv_heads = number("attention.head_count_kv") or heads
    key_size = number("attention.key_length") or hidden // heads
    layer = KVLayer(0, kv_heads, key_size, number("attention.value_length") or key_size)
    return {dtype: layers * paged_bytes_per_token(layer, dtype) for dtype in ("f16", "int8")}


def _plain(value: Any) -> Any:
    """Return a per-layer list as its distinct values, in order."""
    return value if value is None or isinstance(value, str | int | float) else list(dict.fromkeys(value))


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    parameters = facts["num_parameters"]
    mix = ", ".join(f"{name} {part['bytes'] / facts['weights_bytes']:.0%}" for name, part in facts["formats"].items())
    template, cache = facts["chat_template"], facts["kv_bytes_per_token"]
    rows = [
        ("path", facts["path"]),
        ("name", facts["name"]),
        ("container", facts["container"]),
        ("architecture", facts["architecture"]),
        ("license", facts["license"]),
        ("parameters", f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"),
        *((key.replace("_", " ").replace("num ", ""), facts[key]) for key in DIMENSIONS),
        ("KV cache", ", ".join(f"{size} bytes per token as {dtype}" for dtype, size in (cache or {}).items())),
        ("weights", f"{human_bytes(facts['weights_bytes'])} ({facts['bits_per_weight']} bits per weight)"),
        ("formats", mix),
        ("vocabulary", facts["vocab_size"]),
        ("tokenizer", "/".join(name for name in (facts["tokenizer"], facts["pre_tokenizer"]) if name)),
        ("chat template", f"{len(template)} characters" if template else "none: a base model"),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


@click.command(cls=ModelFirst)
@click.argument("model")
@model_option
@json_option
def command(*, model: str, as_json: bool) -> None:
    """Describe MODEL: architecture, size, weight formats, context, tokenizer and chat template."""
    with open_checkpoint(resolve(model)) as checkpoint:
        facts = describe(checkpoint)
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    for name, value in _lines(facts):
        click.echo(f"{name:<20}{value}")
