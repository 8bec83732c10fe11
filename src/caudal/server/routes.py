"""Which handler answers which path, and in whose shape it writes its errors.

A table per API; `both` are paths that clients write with and without /v1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from caudal.server.call import Endpoint
from caudal.server.model_admin_routes import list_model_states, load_model, unload_model
from caudal.server.openai.chat import chat_completions
from caudal.server.openai.completions import completions
from caudal.server.openai.models import get_model, list_models
from caudal.server.problems import openai_shape
from caudal.server.status_routes import health, metrics, root, version
from caudal.server.tokenize_routes import detokenize, tokenize

if TYPE_CHECKING:
    from caudal.server.call import Handler
    from caudal.server.context import ServerContext
    from caudal.server.problems import ErrorShape

    Row = tuple[str, str, Handler]

STATUS: tuple[Row, ...] = (
    ("GET", "/", root),
    ("GET", "/health", health),
    ("GET", "/v1/health", health),
    ("GET", "/ping", health),
    ("GET", "/version", version),
    ("GET", "/metrics", metrics),
)

MODELS: tuple[Row, ...] = (
    ("GET", "/admin/models", list_model_states),
    ("POST", "/admin/models/load", load_model),
    ("POST", "/admin/models/unload", unload_model),
)


def both(*rows: Row) -> tuple[Row, ...]:
    """Return the rows under /v1 and without it."""
    return (*((method, f"/v1{path}", handler) for method, path, handler in rows), *rows)


OPENAI: tuple[Row, ...] = both(
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/completions", completions),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/models", list_models),
    ("GET", "/models/{model_id:path}", get_model),
)

APIS: tuple[tuple[tuple[Row, ...], ErrorShape], ...] = (
    (STATUS, openai_shape),
    (MODELS, openai_shape),
    (OPENAI, openai_shape),
)


def routes(context: ServerContext) -> list[Route]:
    """Return every route of an app."""
    return [
        Route(path, Endpoint(handler, context, shape), methods=[method])
        for table, shape in APIS
        for method, path, handler in table
    ]
