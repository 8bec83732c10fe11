"""Which handler answers which path, and in whose shape it writes its errors.

A table per API; `both` are paths that clients write with and without /v1. A row may end with the Shapes that
/openapi.json tells of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Route

from caudal.server.answer_writer import EVENT_STREAM
from caudal.server.call import Endpoint
from caudal.server.openai.chat import chat_completions
from caudal.server.openai.chat_protocol import ChatCompletion, ChatRequest
from caudal.server.openai.completion_protocol import Completion, CompletionRequest
from caudal.server.openai.completions import completions
from caudal.server.openai.models import ModelCard, ModelList, get_model, list_models
from caudal.server.openapi import DescribedRoute, Shapes, openapi_handler
from caudal.server.problems import openai_shape
from caudal.server.status_routes import health, metrics, root, version
from caudal.server.tokenize_routes import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    detokenize,
    tokenize,
)

if TYPE_CHECKING:
    from caudal.server.call import Handler
    from caudal.server.context import ServerContext
    from caudal.server.problems import ErrorShape

    Row = tuple[str, str, Handler] | tuple[str, str, Handler, Shapes]

STATUS: tuple[Row, ...] = (
    ("GET", "/", root, Shapes(media_type="text/plain")),
    ("GET", "/health", health),
    ("GET", "/v1/health", health),
    ("GET", "/ping", health),
    ("GET", "/version", version),
    ("GET", "/metrics", metrics, Shapes(media_type=CONTENT_TYPE_LATEST)),
)


def both(*rows: Row) -> tuple[Row, ...]:
    """Return the rows under /v1 and without it."""
    return (*((row[0], f"/v1{row[1]}", *row[2:]) for row in rows), *rows)


OPENAI: tuple[Row, ...] = both(
    ("POST", "/chat/completions", chat_completions, Shapes(ChatRequest, ChatCompletion, EVENT_STREAM)),
    ("POST", "/completions", completions, Shapes(CompletionRequest, Completion, EVENT_STREAM)),
    ("POST", "/tokenize", tokenize, Shapes(TokenizeRequest, TokenizeResponse)),
    ("POST", "/detokenize", detokenize, Shapes(DetokenizeRequest, DetokenizeResponse)),
    ("GET", "/models", list_models, Shapes(None, ModelList)),
    ("GET", "/models/{model_id:path}", get_model, Shapes(None, ModelCard)),
)

APIS: tuple[tuple[tuple[Row, ...], ErrorShape], ...] = (
    (STATUS, openai_shape),
    (OPENAI, openai_shape),
)


def described_routes() -> list[DescribedRoute]:
    """Return every row of every API, and the row that describes them."""
    rows = [
        DescribedRoute(
            method=row[0],
            path=row[1],
            handler=row[2],
            shapes=row[3] if len(row) == 4 else Shapes(),
            error_shape=shape,
        )
        for table, shape in APIS
        for row in table
    ]
    handler = openapi_handler(rows)
    path = "/openapi.json"
    rows.append(DescribedRoute(method="GET", path=path, handler=handler, shapes=Shapes(), error_shape=openai_shape))
    return rows


def routes(context: ServerContext) -> list[Route]:
    """Return every route of an app."""
    return [
        Route(row.path, Endpoint(row.handler, context, row.error_shape, row.path), methods=[row.method])
        for row in described_routes()
    ]
