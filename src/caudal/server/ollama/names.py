"""Model names as Ollama's clients write them.

`name` and `name:latest` are the same model, capitals do not matter, and a place that the name comes from
(`hf.co/`, `huggingface.co/`, `registry.ollama.ai/library/`) may stand before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.settings import ServedModel

_PLACES = ("https://", "http://", "hf://", "hf.co/", "huggingface.co/", "registry.ollama.ai/", "library/")
_LATEST = ":latest"


def plain_name(name: str) -> str:
    """Return what is compared: two names of one model have the same."""
    plain = name.casefold()
    for place in _PLACES:
        plain = plain.removeprefix(place)
    return plain.removesuffix(_LATEST)


def tagged_name(name: str) -> str:
    """Return a name as Ollama lists it: with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


async def look_for_model(call: Call, name: str | None) -> ServedModel:
    """Return what find_model does, and look for new files before it says that there is no such model."""
    try:
        return find_model(call, name)
    except HTTPProblem:
        await call.context.models.refresh()
        return find_model(call, name)


def find_model(call: Call, name: str | None) -> ServedModel:
    """Return the model of a name, of those that a request may ask for; no name is the default.

    Raises:
        HTTPProblem: 404, the name is unknown.
    """
    served = call.served()
    if not name and served:
        return served[0]
    found = call.context.models.find(name)
    if found is not None and any(model.name == found.name for model in served):
        return found
    wanted = plain_name(name or "")
    for model in served:
        if wanted in map(plain_name, (model.name, *model.aliases)):
            return model
    message = f"model {name!r} not found; see /api/tags for those that this server has"
    raise HTTPProblem(404, message, code="model_not_found", parameter="model")
