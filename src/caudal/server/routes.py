"""Which handler answers which path, and in whose shape it writes its errors.

A table per API; `both` are paths that clients write with and without /v1. A row may end with the Shapes that
/openapi.json tells of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Route

from caudal.server.admin.key_routes import change_key, create_key, get_key, list_keys, revoke_key, rotate_key
from caudal.server.admin.usage_routes import all_usage, own_usage
from caudal.server.answer_writer import EVENT_STREAM
from caudal.server.anthropic.error_shape import anthropic_shape
from caudal.server.anthropic.messages import count_tokens, create_message
from caudal.server.anthropic.models import by_client, get_model_info, list_model_infos
from caudal.server.call import Endpoint
from caudal.server.llamacpp.error_shape import llamacpp_shape
from caudal.server.llamacpp.llamacpp_routes import LLAMACPP, SHARED
from caudal.server.model_admin_routes import list_model_states, load_model, unload_model
from caudal.server.ollama.error_shape import ollama_shape
from caudal.server.ollama.ollama_routes import OLLAMA
from caudal.server.openai.chat import chat_completions
from caudal.server.openai.chat_protocol import ChatCompletion, ChatRequest
from caudal.server.openai.completion_protocol import Completion, CompletionRequest
from caudal.server.openai.completions import completions
from caudal.server.openai.embeddings import EmbeddingList, EmbeddingRequest, embeddings
from caudal.server.openai.models import ModelCard, ModelList, get_model, list_models
from caudal.server.openapi import DescribedRoute, Shapes, openapi_handler
from caudal.server.problems import openai_shape
from caudal.server.rerank_routes import rerank
from caudal.server.responses.create import count_input_tokens, create_response
from caudal.server.responses.retrieve import (
    cancel_response,
    compact_response,
    delete_response,
    get_response,
    list_input_items,
)
from caudal.server.status_routes import health, metrics, root, version
from caudal.server.tokenize_routes import (
    DetokenizeRequest,
    TokenizeRequest,
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
    ("GET", "/api/hello", root),
    ("GET", "/version", version),
    ("GET", "/metrics", metrics, Shapes(media_type=CONTENT_TYPE_LATEST)),
)

MODELS: tuple[Row, ...] = (
    ("GET", "/admin/models", list_model_states),
    ("POST", "/admin/models/load", load_model),
    ("POST", "/admin/models/unload", unload_model),
)


def both(*rows: Row) -> tuple[Row, ...]:
    """Return the rows under /v1 and without it."""
    return (*((row[0], f"/v1{row[1]}", *row[2:]) for row in rows), *rows)


OPENAI: tuple[Row, ...] = both(
    ("POST", "/chat/completions", chat_completions, Shapes(ChatRequest, ChatCompletion, EVENT_STREAM)),
    ("POST", "/completions", completions, Shapes(CompletionRequest, Completion, EVENT_STREAM)),
    ("POST", "/embeddings", embeddings, Shapes(EmbeddingRequest, EmbeddingList)),
    ("POST", "/rerank", rerank),
    ("POST", "/reranking", rerank),
    ("POST", "/tokenize", tokenize, Shapes(TokenizeRequest)),
    ("POST", "/detokenize", detokenize, Shapes(DetokenizeRequest)),
    ("GET", "/models", by_client(list_models, list_model_infos), Shapes(None, ModelList)),
    ("GET", "/models/{model_id:path}", by_client(get_model, get_model_info), Shapes(None, ModelCard)),
)

ANTHROPIC: tuple[Row, ...] = both(
    ("POST", "/messages", create_message),
    ("POST", "/messages/count_tokens", count_tokens),
)

RESPONSES: tuple[Row, ...] = both(
    ("POST", "/responses", create_response),
    ("POST", "/responses/input_tokens", count_input_tokens),
    ("POST", "/responses/compact", compact_response),
    ("GET", "/responses/{response_id}", get_response),
    ("DELETE", "/responses/{response_id}", delete_response),
    ("POST", "/responses/{response_id}/cancel", cancel_response),
    ("GET", "/responses/{response_id}/input_items", list_input_items),
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
    (MODELS, openai_shape),
    (SHARED, openai_shape),  # before OPENAI: the first route of a path is the one that counts
    (LLAMACPP, llamacpp_shape),
    (OLLAMA, ollama_shape),
    (OPENAI, openai_shape),
    (ANTHROPIC, anthropic_shape),
    (RESPONSES, openai_shape),
    (ADMIN, openai_shape),
)

_TREES = (("/api/", ollama_shape), ("/v1/messages/", anthropic_shape))


def shape_of(method: str, path: str) -> ErrorShape:
    """Return how the API that a request belongs to writes its errors; OpenAI's shape for a path of none.

    A method that a path does not have, and a path below an API's, belong to that API as well.
    """
    found: ErrorShape | None = None
    for table, shape in APIS:
        for row_method, row_path, *_ in table:
            head, brace, _ = row_path.partition("{")
            if path == row_path or (brace and path.startswith(head)):
                if row_method == method:
                    return shape
                found = found or shape
    below = next((shape for tree, shape in _TREES if path.startswith(tree)), openai_shape)
    return found or below


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
