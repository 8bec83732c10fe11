"""GET /admin/usage and /me/usage: what was used, by day and model.

`from` and `to` (YYYY-MM-DD, UTC, both included) bound the days, `key` names one key, `format=csv` answers CSV. JSON is
{"object": "list", "data": [UsageRow]}. /me/usage answers the same rows of the key that asks, and `limits`: for each of
the key's limits, {"limit", "used"}. What was counted in the last second may be missing.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from caudal.errors import InvalidParameter
from caudal.server.admin.key_routes import json_response, store_of
from caudal.server.keys.key import LIMITS
from caudal.server.keys.usage import UsageRow, read_usage
from caudal.server.keys.usage_export import usage_csv
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from caudal.server.call import Call

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in order of days, keys and models."""

    object: str = "list"
    data: list[UsageRow]


class LimitUse(msgspec.Struct, frozen=True):
    """How much of a limit counts now."""

    limit: int
    used: int


class OwnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a key is told of itself."""

    object: str = "usage"
    key_id: str
    key_name: str
    limits: dict[str, LimitUse]
    data: list[UsageRow]


def _day(call: Call, name: str, default: str) -> str:
    day = call.request.query_params.get(name, default)
    if not _DAY.fullmatch(day):
        message = f"{name} is {day[:40]!r}; expected a day as YYYY-MM-DD"
        raise InvalidParameter(message, parameter=name)
    return day


async def _rows(call: Call, key_id: str | None) -> list[UsageRow]:
    store = store_of(call)
    first, last = _day(call, "from", "0000-00-00"), _day(call, "to", "9999-12-31")

    def read() -> list[UsageRow]:
        with store.transaction() as db:
            return read_usage(db, first=first, last=last, key_id=key_id)

    return await asyncio.to_thread(read)


async def all_usage(call: Call) -> Response:
    """Answer what all keys used, or one."""
    wanted = call.request.query_params.get("format", "json")
    if wanted not in ("json", "csv"):
        message = f"format is {wanted[:40]!r}; expected json or csv"
        raise InvalidParameter(message, parameter="format")
    rows = await _rows(call, call.request.query_params.get("key"))
    if wanted == "csv":
        return Response(usage_csv(rows), media_type="text/csv; charset=utf-8")
    return json_response(UsageList(data=rows))


async def own_usage(call: Call) -> Response:
    """Answer what the key that asks used."""
    key = call.key
    if key is None or not key.id:
        raise HTTPProblem(404, "this server asks for no key, so nobody's use is counted", code="not_found")
    used = call.context.accounts.limiter.used(key)
    limits = {name: LimitUse(limit, used[name]) for name in LIMITS if (limit := getattr(key, name)) is not None}
    rows = [] if call.context.accounts.store is None else await _rows(call, key.id)
    return json_response(OwnUsage(key_id=key.id, key_name=key.name, limits=limits, data=rows))
