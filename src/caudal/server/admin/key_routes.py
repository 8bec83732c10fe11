"""/admin/keys: list, create, describe, change, rotate and revoke keys. The scope is `admin`.

Key: as `Key` has it. `GET /admin/keys` answers {"object": "list", "data": [Key]}; `POST /admin/keys` takes KeyFields,
answers 201 with {"key": Key, "secret": "ck-…"}, the only time that the secret is shown; `GET`, `PATCH` (KeyFields) and
`DELETE /admin/keys/ID` answer a Key, DELETE after revoking it; `POST /admin/keys/ID/rotate` answers as create does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from caudal.server.keys.key import Key, KeyFields
from caudal.server.keys.key_store import UnknownKey
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from caudal.server.call import Call
    from caudal.server.keys.key_store import KeyStore

_decoder = msgspec.json.Decoder(KeyFields)
_encode = msgspec.json.Encoder().encode


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """All keys."""

    object: str = "list"
    data: list[Key]


def store_of(call: Call) -> KeyStore:
    """Return where the keys are kept; raise 404 if this server keeps none."""
    store = call.context.accounts.store
    if store is None:
        message = "this server has no state directory, and so no keys to administer; start it with --state-dir"
        raise HTTPProblem(404, message, code="not_found")
    return store


def json_response(document: object, status: int = 200) -> Response:
    """Return a document that no cache keeps: it may hold a secret."""
    return Response(_encode(document), status, headers={"cache-control": "no-store"}, media_type="application/json")


async def _do(work: Callable[[], object], status: int = 200) -> Response:
    """Do database work in a thread."""
    try:
        return json_response(await asyncio.to_thread(work), status)
    except UnknownKey as error:
        raise HTTPProblem(404, str(error), code="key_not_found") from error


async def list_keys(call: Call) -> Response:
    """List every key."""
    store = store_of(call)
    return await _do(lambda: KeyList(data=store.list()))


async def create_key(call: Call) -> Response:
    """Make a key."""
    store, fields = store_of(call), await call.body(_decoder)
    return await _do(lambda: store.create(fields), 201)


async def get_key(call: Call) -> Response:
    """Describe a key."""
    store, key_id = store_of(call), call.request.path_params["key_id"]
    return await _do(lambda: store.find(key_id))


async def change_key(call: Call) -> Response:
    """Change a key."""
    store, key_id = store_of(call), call.request.path_params["key_id"]
    fields = await call.body(_decoder)
    return await _do(lambda: store.change(key_id, fields))


async def revoke_key(call: Call) -> Response:
    """Revoke a key; it stays in the list, and so does its usage."""
    store, key_id = store_of(call), call.request.path_params["key_id"]
    return await _do(lambda: store.revoke(key_id))


async def rotate_key(call: Call) -> Response:
    """Give a key a new secret."""
    store, key_id = store_of(call), call.request.path_params["key_id"]
    return await _do(lambda: store.rotate(key_id))
