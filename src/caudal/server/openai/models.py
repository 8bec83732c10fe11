"""GET /v1/models and /v1/models/{id}. The context window is given under every name that clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from caudal.server.context import ServerContext

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


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: str = "list"
    data: list[ModelCard]


def _card(context: ServerContext, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=context.model.created,
        root=context.model.name,
        max_model_len=context.max_model_len,
        context_length=context.max_model_len,
    )


async def list_models(request: Request, context: ServerContext) -> Response:  # noqa: ARG001 - every handler's shape
    """List what is served."""
    cards = [_card(context, name) for name in (context.model.name, *context.model.aliases)]
    return Response(_encode(ModelList(data=cards)), media_type="application/json")


async def get_model(request: Request, context: ServerContext) -> Response:
    """Describe one model; its id may have slashes."""
    name = request.path_params["model_id"]
    context.check_model(name)
    return Response(_encode(_card(context, name)), media_type="application/json")
