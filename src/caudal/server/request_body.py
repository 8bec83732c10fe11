"""Reading a request's body: bounded, then parsed into a msgspec type whatever its content type says."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from caudal.server.item_limit import check_items
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from starlette.requests import Request

Body = TypeVar("Body")
_MAX_MENDED_BYTES = 4 << 20
_MAX_WHOLE = 2.0**53
_FLOAT = re.compile(r"Expected `int[^`]*`, got `float`")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_FIELD = re.compile(r"\$\.([A-Za-z_]\w*)")


async def read_body(request: Request, max_bytes: int, timeout_s: float = 120.0) -> bytes:
    """Return the body.

    Raises:
        HTTPProblem: 413 as soon as it is known to be too large, 408 when it has not come in time, 415 for a compressed
            one: what it would unpack to has no bound.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"content-encoding is {encoding[:64]!r}; send the body as it is"
        raise HTTPProblem(415, message, code="unsupported_content_encoding")
    too_large = HTTPProblem(
        413, f"the request body is over {max_bytes} bytes, the most that this server reads", code="request_too_large"
    )
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > max_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        message = f"the request's body did not come within {timeout_s:g} s; send it faster"
        raise HTTPProblem(408, message, code="request_timeout", headers={"connection": "close"}) from error
    return b"".join(parts)


def parse_body(data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Return the body as the decoder's type. Unknown fields are ignored; a wrong type is a 400 that names the field.

    Two things that clients write and that are not quite JSON's are taken all the same: whole numbers with a fraction
    of 0 where an integer is meant, and half surrogate pairs, of a text that was cut inside a character.
    More messages or items than MAX_ITEMS are refused.
    """
    try:
        body = _decode(data, decoder)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        message = f"the request body does not have the expected shape: {error}"
        raise HTTPProblem(400, message, code="invalid_type", parameter=found and found.group(1)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the request body is not valid JSON: {error}"
        raise HTTPProblem(400, message, code="invalid_json") from error
    except RecursionError as error:
        message = "the request body is nested too deeply; expected a flat JSON object"
        raise HTTPProblem(400, message, code="invalid_json") from error
    check_items(body)
    return body


def _decode(data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        wrong_type = isinstance(error, msgspec.ValidationError)
        mendable = _FLOAT.search(str(error)) if wrong_type else _HALF_PAIR.search(data)
        if len(data) > _MAX_MENDED_BYTES or not mendable:
            raise
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise error from None
        return decoder.decode(msgspec.json.encode(_mended(value)))


def _mended(value: Any) -> Any:
    """Return a JSON value without halves of surrogate pairs and without fractions of 0."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_WHOLE:
        return int(value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value
