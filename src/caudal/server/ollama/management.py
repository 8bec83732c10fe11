"""Routes that change which models there are: refused, since that is the administrator's business.

A request for a model that is already here is answered as if it had just been fetched, because clients pull before
they ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import msgspec
from starlette.responses import JSONResponse, Response

from caudal.server.answer_writer import NDJSON
from caudal.server.ollama.names import look_for_model
from caudal.server.ollama.protocol import ModelRequest
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from caudal.server.call import Call

_PULLED = ("pulling manifest", "verifying sha256 digest", "writing manifest", "success")
_decoder = msgspec.json.Decoder(ModelRequest)


class CopyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /api/copy."""

    source: str | None = None
    destination: str | None = None


_copy_decoder = msgspec.json.Decoder(CopyRequest)


async def pull(call: Call) -> Response:
    """Say that a model is here; refuse to fetch others."""
    body = await call.body(_decoder)
    name = _named(body)
    try:
        await look_for_model(call, name)
    except HTTPProblem:
        _refuse(f"fetch {name!r}; fetch it on the server's machine, and start the server with it")
    if body.stream is False:
        return JSONResponse({"status": "success"})
    lines = b"".join(msgspec.json.encode({"status": status}) + b"\n" for status in _PULLED)
    return Response(lines, media_type=NDJSON)


async def delete(call: Call) -> Response:
    """Refuse to remove a model."""
    name = _named(await call.body(_decoder))
    await look_for_model(call, name)
    _refuse(f"remove {name!r}; remove its file on the server's machine")


async def copy(call: Call) -> Response:
    """Refuse to give a model another name."""
    body = await call.body(_copy_decoder)
    if not body.source or not body.destination:
        message = "source or destination is missing; expected the names of two models"
        raise HTTPProblem(400, message, code="invalid_value", parameter="source")
    await look_for_model(call, body.source)
    _refuse(f"copy {body.source!r}; give it further names when the server is started (--served-model-name)")


async def create(call: Call) -> Response:
    """Refuse to make a model."""
    name = _named(await call.body(_decoder))
    _refuse(f"create {name!r}; quantise or edit the file on the server's machine")


async def push(call: Call) -> Response:
    """Refuse to give a model away."""
    name = _named(await call.body(_decoder))
    _refuse(f"push {name!r}: it sends models nowhere")


async def blob(call: Call) -> Response:
    """Refuse files; there are none to be asked for either."""
    if call.request.method in ("GET", "HEAD"):
        message = "there are no blobs; this server keeps no files for clients"
        raise HTTPProblem(404, message, code="not_found")
    _refuse("take files from clients")


def _named(body: ModelRequest) -> str:
    name = body.model or body.name
    if not name:
        message = "model is missing; expected a model's name"
        raise HTTPProblem(400, message, code="invalid_value", parameter="model")
    return name


def _refuse(what: str) -> NoReturn:
    message = f"this server does not {what}"
    raise HTTPProblem(403, message, code="not_allowed")
