"""Which handler answers which path, and in whose shape it writes its errors.

A table per API; `both` are paths that clients write with and without /v1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from caudal.server.call import Endpoint
from caudal.server.llamacpp.error_shape import llamacpp_shape
from caudal.server.llamacpp.llamacpp_routes import LLAMACPP, SHARED
from caudal.server.ollama.error_shape import ollama_shape
from caudal.server.ollama.ollama_routes import OLLAMA
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
    ("GET", "/api/hello", root),
    ("GET", "/version", version),
    ("GET", "/metrics", metrics),
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
    (SHARED, openai_shape),  # before OPENAI: the first route of a path is the one that counts
    (LLAMACPP, llamacpp_shape),
    (OLLAMA, ollama_shape),
    (OPENAI, openai_shape),
)


def routes(context: ServerContext) -> list[Route]:
    """Return every route of an app."""
    return [
        Route(path, Endpoint(handler, context, shape), methods=[method])
        for table, shape in APIS
        for method, path, handler in table
    ]
