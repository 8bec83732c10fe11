"""GET /api/tags and /api/ps, POST /api/show, GET /api/version and /api/status: what is served, and what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import JSONResponse

from caudal import __version__
from caudal.server.ollama.capabilities import capabilities_of
from caudal.server.ollama.names import look_for_model, tagged_name
from caudal.server.ollama.protocol import ModelRequest
from caudal.server.ollama.time_format import NEVER, timestamp

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call
    from caudal.server.context import ServerContext
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.model_facts import ModelFacts
    from caudal.server.settings import ServedModel

API_VERSION = "0.30.0"
"""The version of Ollama whose API this is; clients compare it with what they need."""

_decoder = msgspec.json.Decoder(ModelRequest)


async def tags(call: Call) -> Response:
    """List what is served, under every name."""
    await call.context.models.refresh()
    models = [
        {**_entry(model, name), "capabilities": _capabilities(call.context, model)}
        for model in call.served()
        for name in (model.name, *model.aliases)
    ]
    return JSONResponse({"models": models})


async def running(call: Call) -> Response:
    """List what is in memory."""
    statuses = {status.name: status for status in call.context.models.statuses()}
    allowed = {model.name for model in call.served()}
    models = [
        {
            **_entry(model.info, model.name),
            "expires_at": NEVER if status.expires_at is None else timestamp(int(status.expires_at * 1e9)),
            "size_vram": 0,
            "context_length": model.max_model_len or model.info.facts.context_length,
        }
        for model in call.context.models.loaded()
        if model.name in allowed
        for status in [statuses[model.name]]
    ]
    return JSONResponse({"models": models})


async def show(call: Call) -> Response:
    """Describe one model."""
    body = await call.body(_decoder)
    model = await look_for_model(call, body.model or body.name)
    facts = model.facts
    loaded = _loaded(call.context, model)
    context_length = _context_length(facts, loaded)
    template = facts.chat_template if loaded is None else loaded.tokenizer.chat_template_source
    return JSONResponse(
        {
            "modelfile": f"# Served by Caudal {__version__}\nFROM {model.name}\n",
            "parameters": f"num_ctx                        {context_length}" if context_length else "",
            "template": template,
            "license": str(facts.metadata.get("general.license", "")),
            "details": _details(facts),
            "model_info": _model_info(facts, context_length, verbose=bool(body.verbose)),
            "capabilities": _capabilities(call.context, model),
            "modified_at": timestamp(facts.modified_ns),
        }
    )


async def version(call: Call) -> Response:  # noqa: ARG001 - every handler's shape
    """Return the version of the API, and Caudal's own."""
    return JSONResponse({"version": API_VERSION, "caudal": __version__})


async def status(call: Call) -> Response:  # noqa: ARG001 - the same
    """Say that nothing here goes to a cloud."""
    return JSONResponse({"cloud": {"disabled": True, "source": "server"}})


def _loaded(context: ServerContext, model: ServedModel) -> LoadedModel | None:
    return next((each for each in context.models.loaded() if each.name == model.name), None)


def _context_length(facts: ModelFacts, loaded: LoadedModel | None) -> int:
    """Return how long prompt and answer may be together: less than the model's own length if the server says so."""
    limit = None if loaded is None else loaded.max_model_len
    return facts.context_length if limit is None else limit


def _capabilities(context: ServerContext, model: ServedModel) -> list[str]:
    loaded = _loaded(context, model)
    if loaded is None:
        facts = model.facts
        if any(key.endswith(".pooling_type") for key in facts.metadata):
            return ["embedding"]
        return capabilities_of(facts.chat_template, fills_in_the_middle=facts.fills_in_the_middle)
    if loaded.task != "generate":
        return ["embedding"]
    tokenizer = loaded.tokenizer
    return capabilities_of(tokenizer.chat_template_source, fills_in_the_middle=tokenizer.fim_tokens is not None)


def _entry(model: ServedModel, name: str) -> dict[str, Any]:
    facts = model.facts
    return {
        "name": tagged_name(name),
        "model": tagged_name(name),
        "modified_at": timestamp(facts.modified_ns),
        "size": facts.size_bytes,
        "digest": facts.digest,
        "details": _details(facts),
    }


def _details(facts: ModelFacts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": facts.container,
        "family": facts.architecture,
        "families": [facts.architecture] if facts.architecture else [],
        "parameter_size": parameter_size(facts.num_parameters),
        "quantization_level": facts.quantization,
        "context_length": facts.context_length,
        "embedding_length": facts.hidden_size,
    }


def parameter_size(num_parameters: int) -> str:
    """Return a number of parameters as people write it, "1.5B" for example; "" for none."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if num_parameters >= unit:
            return f"{num_parameters / unit:.1f}{name}"
    return str(num_parameters) if num_parameters else ""


def _model_info(facts: ModelFacts, context_length: int, *, verbose: bool) -> dict[str, Any]:
    """Return the file's metadata. The context length is the one that this server keeps to: clients plan with it."""
    info = {
        key: value for key, value in facts.metadata.items() if verbose or not key.startswith("tokenizer.chat_template")
    }
    info["general.architecture"] = facts.architecture
    info["general.parameter_count"] = facts.num_parameters
    if facts.architecture and context_length:
        info[f"{facts.architecture}.context_length"] = context_length
    return info
