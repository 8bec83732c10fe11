"""GET /v1/models and /v1/models/{id}. The context window is given under every name that clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from caudal.server.llamacpp.model_cards import card_extras, listed_model

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.context import ServerContext
    from caudal.server.settings import ServedModel

_encode = msgspec.json.Encoder().encode


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "caudal"
    root: str
    parent: None = None
    max_model_len: int | None
    context_length: int | None
    aliases: list[str]
    tags: list[str]
    architecture: dict[str, Any]
    status: dict[str, Any]
    meta: dict[str, Any]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models, and the same in Ollama's form, as llama-server has it."""

    object: str = "list"
    data: list[ModelCard]
    models: list[dict[str, Any]]


def card_of(context: ServerContext, model: ServedModel, name: str) -> ModelCard:
    """Return what is told of a model under one of its names.

    The context of a loaded model is what its engine has room for; of another one, what its file says.
    """
    loaded = next((each for each in context.models.loaded() if each.name == model.name), None)
    max_model_len = loaded.max_model_len if loaded is not None else model.context_length
    return ModelCard(
        id=name,
        created=model.created,
        root=model.name,
        max_model_len=max_model_len,
        context_length=max_model_len,
        **card_extras(context, model),
    )


async def list_models(call: Call) -> Response:
    """List what the key may use, loaded or not."""
    await call.context.models.refresh()
    named = [(model, name) for model in call.served() for name in (model.name, *model.aliases)]
    cards = [card_of(call.context, model, name) for model, name in named]
    models = [listed_model(model, name) for model, name in named]
    return Response(_encode(ModelList(data=cards, models=models)), media_type="application/json")


async def get_model(call: Call) -> Response:
    """Describe one model; its id may have slashes."""
    name = call.request.path_params["model_id"]
    await call.context.models.refresh()
    model = call.find(name)
    return Response(_encode(card_of(call.context, model, name)), media_type="application/json")
