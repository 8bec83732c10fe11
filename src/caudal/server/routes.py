"""Which handler answers which path, and in whose shape it writes its errors.

A table per API; `both` are paths that clients write with and without /v1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from caudal.server.admin.key_routes import change_key, create_key, get_key, list_keys, revoke_key, rotate_key
from caudal.server.admin.usage_routes import all_usage, own_usage
from caudal.server.call import Endpoint
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

ADMIN: tuple[Row, ...] = (
    ("GET", "/admin/keys", list_keys),
    ("POST", "/admin/keys", create_key),
    ("GET", "/admin/keys/{key_id}", get_key),
    ("PATCH", "/admin/keys/{key_id}", change_key),
    ("DELETE", "/admin/keys/{key_id}", revoke_key),
    ("POST", "/admin/keys/{key_id}/rotate", rotate_key),
    ("GET", "/admin/usage", all_usage),
    ("GET", "/me/usage", own_usage),
)

APIS: tuple[tuple[tuple[Row, ...], ErrorShape], ...] = (
    (STATUS, openai_shape),
    (OPENAI, openai_shape),
    (ADMIN, openai_shape),
)


def shape_of(method: str, path: str) -> ErrorShape:
    """Return how the API that a request belongs to writes its errors; OpenAI's shape for a path of none."""
    for table, shape in APIS:
        for row_method, row_path, _ in table:
            head, brace, _ = row_path.partition("{")
            if row_method == method and (path == row_path or (brace and path.startswith(head))):
                return shape
    return openai_shape


def routes(context: ServerContext) -> list[Route]:
    """Return every route of an app."""
    return [
        Route(path, Endpoint(handler, context, shape), methods=[method])
        for table, shape in APIS
        for method, path, handler in table
    ]
