"""/admin/models: which models are in memory, and to load and unload them. What `caudal ps` and `caudal stop` ask."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.model_events import ModelStatus
    from caudal.server.settings import ServedModel

_encode = msgspec.json.Encoder().encode


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        model: its name.
        id: 12 hex digits that tell its file from others, and this version of it from the next.
        state: "unloaded", "loading", "loaded" or "unloading".
        since: Unix time of the last change of state.
        expires_at: Unix time at which it is unloaded if nobody uses it; null if that is not planned.
        in_use: requests that work with it or wait for it.
        size_bytes: of its files.
        held_bytes: of memory, apart from what is mapped from files; 0 if it is not there.
        context_length: what its engine has room for; of a model that is not loaded, what its file says.
        healthy: whether it answers.
        error: why it cannot be loaded, if that is known.
    """

    model: str
    id: str
    state: str
    since: float
    expires_at: float | None
    in_use: int
    size_bytes: int
    held_bytes: int
    context_length: int | None
    healthy: bool
    error: str | None


class ModelStates(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /admin/models."""

    models: list[ModelState]


class ModelName(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the others."""

    model: str


_decoder = msgspec.json.Decoder(ModelName)


def _file_id(info: ServedModel | None) -> str:
    facts = () if info is None else (info.path, info.size_bytes, info.modified_s)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _state_of(call: Call, status: ModelStatus) -> ModelState:
    info = call.context.models.find(status.name)
    return ModelState(
        model=status.name,
        id=_file_id(info),
        state=status.state,
        since=status.since,
        expires_at=status.expires_at,
        in_use=status.in_use,
        size_bytes=0 if info is None else info.size_bytes,
        held_bytes=status.held_bytes,
        context_length=status.max_model_len or (None if info is None else info.context_length),
        healthy=status.healthy,
        error=status.error,
    )


async def list_model_states(call: Call) -> Response:
    """Return {"models": [...]}, every model that the key may ask for and its state."""
    await call.context.models.refresh()
    statuses = call.context.models.statuses()
    if call.restricts_models:
        served = {model.name for model in call.served()}
        statuses = [status for status in statuses if status.name in served]
    states = [_state_of(call, status) for status in statuses]
    return Response(_encode(ModelStates(models=states)), media_type="application/json")


async def load_model(call: Call) -> Response:
    """Bring {"model": NAME} into memory and return its state when it is there. Fails as a request for it would."""
    status = await call.context.models.load(await _asked(call))
    return Response(_encode(_state_of(call, status)), media_type="application/json")


async def unload_model(call: Call) -> Response:
    """Take {"model": NAME} out of memory and return its state: "loaded" still, while requests work with it."""
    status = await call.context.models.unload(await _asked(call))
    return Response(_encode(_state_of(call, status)), media_type="application/json")


async def _asked(call: Call) -> str:
    """Return the name of the model that a request is about. Raises HTTPProblem if the key may not ask for it."""
    return (await call.look_for((await call.body(_decoder)).model)).name
