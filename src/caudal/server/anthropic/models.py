"""GET /v1/models and /v1/models/{id} in Anthropic's shape, for clients that send `anthropic-version`.

Source: Anthropic API reference, "Models".
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from caudal.server.anthropic.error_shape import anthropic_shape
from caudal.server.openai.models import card_of
from caudal.server.paging import read_limit

if TYPE_CHECKING:
    from caudal.server.call import Call, Handler
    from caudal.server.openai.models import ModelCard

MAX_PAGE = 1000
_DEFAULT_PAGE = 20
_encode = msgspec.json.Encoder().encode


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, tag="model"):
    """One model."""

    id: str
    display_name: str
    created_at: datetime
    lifecycle: str = "active"
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: Any = None
    deprecated_at: None = None
    retires_at: None = None
    line: None = None


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def by_client(for_openai: Handler, for_anthropic: Handler) -> Handler:
    """Return a handler that answers each kind of client in its own shape, errors included."""

    async def answer(call: Call) -> Response:
        if "anthropic-version" not in call.request.headers:
            return await for_openai(call)
        call.shape = anthropic_shape
        return await for_anthropic(call)

    return answer


async def list_model_infos(call: Call) -> Response:
    """List what is served: `limit` models after `after_id`, or before `before_id`."""
    await call.context.models.refresh()
    query = call.request.query_params
    infos = [
        _info(card_of(call.context, model, name)) for model in call.served() for name in (model.name, *model.aliases)
    ]
    ids = [info.id for info in infos]
    limit = read_limit(query.get("limit"), default=_DEFAULT_PAGE, most=MAX_PAGE)
    start, stop = 0, len(infos)
    if (after := query.get("after_id")) in ids:
        start = ids.index(str(after)) + 1
    if (before := query.get("before_id")) in ids:
        stop = ids.index(str(before))
        start = max(start, stop - limit)
    shown = infos[start : min(stop, start + limit)]
    more = start > 0 if before in ids else start + len(shown) < stop
    page = ModelPage(
        data=shown,
        has_more=more,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )
    return Response(_encode(page), media_type="application/json")


async def get_model_info(call: Call) -> Response:
    """Describe one model; its id may have slashes."""
    name = call.request.path_params["model_id"]
    await call.context.models.refresh()
    model = call.find(name)
    return Response(_encode(_info(card_of(call.context, model, name))), media_type="application/json")


def _info(card: ModelCard) -> ModelInfo:
    return ModelInfo(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC),
        max_input_tokens=card.max_model_len,
        max_tokens=card.max_model_len,
    )
