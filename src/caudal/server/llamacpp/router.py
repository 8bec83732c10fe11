"""Models by name: POST /models/load and /models/unload, GET /models/sse, as llama-server's router has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import JSONResponse, Response, StreamingResponse

from caudal.server.answer_writer import EVENT_STREAM, PING, STREAM_HEADERS, sse
from caudal.server.llamacpp.model_cards import status_value
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from caudal.server.call import Call
    from caudal.server.model_events import ModelStatus

_CHECK_S = 0.5
_encode = msgspec.json.Encoder().encode


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model's name."""

    model: str


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an adapter is added."""

    id: int
    scale: float


_decoder = msgspec.json.Decoder(ModelRequest)
_scales_decoder = msgspec.json.Decoder(list[Scale])


async def load_model(call: Call) -> Response:
    """Load a model, and answer when it is there."""
    body = await call.body(_decoder)
    await call.context.models.load((await call.look_for(body.model)).name)
    return JSONResponse({"success": True})


async def unload_model(call: Call) -> Response:
    """Take a model out of memory."""
    body = await call.body(_decoder)
    await call.context.models.unload((await call.look_for(body.model)).name)
    return JSONResponse({"success": True})


async def add_model(call: Call) -> Response:
    """Refuse to fetch a model."""
    body = await call.body(_decoder)
    message = f"this server does not fetch models; fetch {body.model!r} on its machine and start it with that"
    raise HTTPProblem(501, message, code="not_supported")


async def remove_model(call: Call) -> Response:  # noqa: ARG001 - every handler's shape
    """Refuse to remove a model."""
    message = "this server does not remove models; remove the file on its machine"
    raise HTTPProblem(501, message, code="not_supported")


async def set_lora_adapters(call: Call) -> Response:
    """Take a list of no adapters; refuse any other."""
    scales = await call.body(_scales_decoder)
    if scales:
        message = f"there is no adapter {scales[0].id}; this server has none, see GET /lora-adapters"
        raise HTTPProblem(400, message, code="invalid_value", parameter="id")
    return JSONResponse({"success": True})


async def model_events(call: Call) -> Response:
    """Send the state of every model, and every change of one, until the client or the server leaves."""
    await call.context.models.refresh()
    stream = _events(call, call.settings.ping_interval_s)
    return StreamingResponse(stream, media_type=EVENT_STREAM, headers=STREAM_HEADERS)


async def _events(call: Call, ping_s: float) -> AsyncIterator[bytes]:
    """Yield events and pings. Ends when a server that was well is so no longer: it may be about to leave."""
    models = call.context.models
    with models.events.subscribe() as news:
        for status in models.statuses():
            if _may_see(call, status):
                yield _event(status)
        was_healthy, silent_s = models.healthy, 0.0
        while not was_healthy or models.healthy:
            was_healthy = models.healthy
            try:
                status = await asyncio.wait_for(news.get(), _CHECK_S)
                if _may_see(call, status):
                    yield _event(status)
                    silent_s = 0.0
            except TimeoutError:
                silent_s += _CHECK_S
            if silent_s >= ping_s:
                yield PING
                silent_s = 0.0


def _may_see(call: Call, status: ModelStatus) -> bool:
    return any(model.name == status.name for model in call.served())


def _event(status: ModelStatus) -> bytes:
    value = status_value(status)
    data: dict[str, Any] = {"status": value.pop("value"), **value}
    if status.max_model_len is not None:
        data["info"] = {"n_ctx": status.max_model_len}
    return sse(_encode({"model": status.name, "event": "model_status", "data": data}))
