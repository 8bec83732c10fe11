"""GET /openapi.json: the routes as an OpenAPI 3.1 document, made of the route table and the structs of its rows.

A row may end with Shapes; a row without them is described by its path, its method and its handler's docstring.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from caudal import __version__
from caudal.server.problems import ErrorBody, openai_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caudal.server.call import Call, Handler
    from caudal.server.problems import ErrorShape

_COMPONENTS = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a route takes and gives.

    Attributes:
        request: the struct of its body; None if it takes none.
        response: the struct of its answer; None if that is not JSON of one shape.
        stream: the media type of its streams; "" if it has none.
        media_type: of an answer that is no JSON.
    """

    request: type | None = None
    response: type | None = None
    stream: str = ""
    media_type: str = _JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRoute:
    """A row of the route table, with the error shape of its API."""

    method: str
    path: str
    handler: Handler
    shapes: Shapes
    error_shape: ErrorShape


def document(routes: Iterable[DescribedRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes. Of two for one path and method, the first counts."""
    found = list(routes)
    types = [t for route in found for t in (route.shapes.request, route.shapes.response) if t is not None]
    types = list(dict.fromkeys([*types, ErrorBody]))
    schemas, components = msgspec.json.schema_components(types, ref_template=_COMPONENTS)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in found:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {}).setdefault(route.method.lower(), _operation(route, schema_of))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Caudal",
            "version": __version__,
            "description": "Fields that are not described here are ignored.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
    }


def _operation(route: DescribedRoute, schema_of: dict[type, Any]) -> dict[str, Any]:
    shapes = route.shapes
    text = inspect.getdoc(route.handler) or ""
    schema = {} if shapes.response is None else {"schema": schema_of[shapes.response]}
    answer: dict[str, Any] = {shapes.media_type.partition(";")[0]: schema}
    if shapes.stream:
        answer[shapes.stream.partition(";")[0]] = {}
    error = {"schema": schema_of[ErrorBody]} if route.error_shape is openai_shape else {}
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": text.partition("\n")[0] or f"{route.method} {route.path}",
        "responses": {
            "200": {"description": "The answer.", "content": answer},
            "default": {"description": "An error.", "content": {_JSON: error}},
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    if parameters:
        operation["parameters"] = parameters
    if shapes.request is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema_of[shapes.request]}}}
    elif route.method in ("POST", "PUT", "PATCH"):
        operation["requestBody"] = {"content": {_JSON: {}}}
    return operation


def openapi_handler(routes: list[DescribedRoute]) -> Handler:
    """Return the handler of GET /openapi.json. The document is made when it is first asked for."""
    made: list[bytes] = []

    async def openapi(call: Call) -> Response:  # noqa: ARG001 - every handler's shape
        """Describe the routes of this server."""
        if not made:
            made.append(msgspec.json.encode(document(routes)))
        return Response(made[0], media_type=_JSON)

    return openapi
