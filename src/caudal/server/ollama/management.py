"""Routes that change which models there are, on servers that were started so that clients may.

A request for a model that is already here is answered as if it had just been fetched, because clients pull before
they ask. To make models of others, to send them away and to take files is refused: that is done elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import msgspec
from starlette.responses import JSONResponse, Response

from caudal.server.answer_writer import NDJSON
from caudal.server.ollama.names import look_for_model
from caudal.server.ollama.protocol import ModelRequest
from caudal.server.ollama.pull_answer import FIRST, LAST, PullResponse, status_lines
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.settings import ServedModel

_FLAGS = "start it with --models-dir DIR --manage-models to allow that"
_decoder = msgspec.json.Decoder(ModelRequest)


class CopyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /api/copy."""

    source: str | None = None
    destination: str | None = None


_copy_decoder = msgspec.json.Decoder(CopyRequest)


async def pull(call: Call) -> Response:
    """Fetch a model, or say that it is here."""
    body = await call.body(_decoder)
    name, changes = _named(body), call.context.changes
    if not await _is_here(call, name):
        if changes is None:
            _refuse(f"fetch {name!r}; {_FLAGS}, or fetch it on the server's machine")
        _note(call, _allowed(call, changes.pulled_name(name)))
        return PullResponse(call, changes.pull(name), stream=body.stream is not False)
    if body.stream is False:
        return JSONResponse({"status": "success"})
    return Response(status_lines(FIRST, *LAST), media_type=NDJSON)


async def delete(call: Call) -> Response:
    """Unload a model and delete it."""
    name = _named(await call.body(_decoder))
    model, changes = await _known(call, name), call.context.changes
    if changes is None:
        _refuse(f"remove {name!r}; {_FLAGS}, or remove its file on the server's machine")
    _note(call, model.name)
    await changes.delete(model)
    return Response()


async def copy(call: Call) -> Response:
    """Give a model a further name."""
    body = await call.body(_copy_decoder)
    if not body.source or not body.destination:
        message = "source or destination is missing; expected the names of two models"
        raise HTTPProblem(400, message, code="invalid_value", parameter="source")
    model, changes = await _known(call, body.source), call.context.changes
    if changes is None:
        _refuse(f"copy {body.source!r}; {_FLAGS}, or give it further names when it is started (--alias NAME=MODEL)")
    _note(call, f"{model.name} -> {_allowed(call, changes.copy_name(body.destination))}")
    await changes.copy(model, body.destination)
    return Response()


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


async def _known(call: Call, name: str) -> ServedModel:
    """Return the model of a name, of those that there are now: where they change, one may have gone as well."""
    if call.context.changes is not None:
        await call.context.models.refresh()
    return await look_for_model(call, name)


async def _is_here(call: Call, name: str) -> bool:
    try:
        await _known(call, name)
    except HTTPProblem:
        return False
    return True


def _allowed(call: Call, name: str) -> str:
    """Return the name of a model to be; raise HTTPProblem if the key could not use it."""
    if call.restricts_models and call.key is not None and not call.key.may_use((name,)):
        message = f"this key may not use a model called {name!r}, and so not make one"
        raise HTTPProblem(403, message, code="not_allowed", parameter="model")
    return name


def _note(call: Call, what: str) -> None:
    """Put what is changed into the audit log, beside who does it."""
    if call.meter is not None:
        call.meter.model = what


def _refuse(what: str) -> NoReturn:
    message = f"this server does not {what}"
    raise HTTPProblem(403, message, code="not_allowed")
