"""GET and DELETE /v1/responses/{id}, POST /v1/responses/{id}/cancel, GET /v1/responses/{id}/input_items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.paging import read_limit
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from caudal.server.call import Call

MAX_PAGE = 100
_DEFAULT_PAGE = 20
_encode = msgspec.json.Encoder().encode


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What DELETE answers."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list of input items."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ShownState(msgspec.Struct, frozen=True, kw_only=True):
    """What cancel looks at in a stored response."""

    background: bool


async def get_response(call: Call) -> Response:
    """Return a response that is stored, or is being made."""
    if call.request.query_params.get("stream", "").lower() in ("true", "1"):
        message = "stream is not supported when a response is retrieved; leave it out, and ask again until it has ended"
        raise UnsupportedParameter(message, parameter="stream")
    return _json(_body(call))


async def delete_response(call: Call) -> Response:
    """Forget a response; one that is being made is cancelled."""
    kept, response_id = call.context.responses, _id(call)
    run = kept.runs.get(call.tenant, response_id)
    if run is not None:
        await run.cancel()
    if not kept.store.delete(call.tenant, response_id):
        raise _unknown(response_id)
    return _json(_encode(Deleted(id=response_id)))


async def cancel_response(call: Call) -> Response:
    """End a response that is being made in the background; one that has ended is returned as it is."""
    run = call.context.responses.runs.get(call.tenant, _id(call))
    if run is not None:
        await run.cancel()
        return _json(_encode(run.writer.response))
    body = _body(call)
    if not msgspec.json.decode(body, type=ShownState).background:
        message = "Only responses created with background=true can be cancelled; end a stream by closing it."
        raise HTTPProblem(400, message, code="invalid_value", parameter="response_id")
    return _json(body)


async def list_input_items(call: Call) -> Response:
    """List the items of a response's own request: the latest first, unless `order` is "asc"."""
    stored = call.context.responses.store.get(call.tenant, _id(call))
    if stored is None:
        raise _unknown(_id(call))
    query = call.request.query_params
    items: list[dict[str, Any]] = msgspec.json.decode(stored.input)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        message = f"order is {order[:32]!r}; expected 'asc' or 'desc'"
        raise InvalidParameter(message, parameter="order")
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    start = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    shown = items[start : start + read_limit(query.get("limit"), default=_DEFAULT_PAGE, most=MAX_PAGE)]
    page = ItemPage(
        data=shown,
        first_id=shown[0]["id"] if shown else None,
        last_id=shown[-1]["id"] if shown else None,
        has_more=start + len(shown) < len(items),
    )
    return _json(_encode(page))


async def compact_response(call: Call) -> Response:  # noqa: ARG001 - whatever is sent
    """Say that there is no such thing, in the way from which clients learn to do it themselves."""
    message = "this server does not compact conversations; ask a model for a summary instead"
    raise HTTPProblem(404, message, code="not_found")


def _id(call: Call) -> str:
    response_id: str = call.request.path_params["response_id"]
    return response_id


def _body(call: Call) -> bytes:
    run = call.context.responses.runs.get(call.tenant, _id(call))
    if run is not None:
        return _encode(run.writer.response)
    stored = call.context.responses.store.get(call.tenant, _id(call))
    if stored is None:
        raise _unknown(_id(call))
    return stored.body


def _unknown(response_id: str) -> HTTPProblem:
    message = (
        f"Response with id '{response_id[:128]}' not found. This server keeps responses in memory, up to a limit, and "
        "only those whose request did not say store false."
    )
    return HTTPProblem(404, message, code="response_not_found", parameter="response_id")


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")
