"""The HTTP application: every route, with keys, tidy paths and error bodies around them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from caudal.server.auth import RequireKey
from caudal.server.browser_guard import BrowserGuard
from caudal.server.context import ServerContext
from caudal.server.error_bodies import HTTPProblem, error_response
from caudal.server.openai.chat import chat_completions
from caudal.server.openai.completions import completions
from caudal.server.openai.models import get_model, list_models
from caudal.server.paths import TidyPaths
from caudal.server.status_routes import health, metrics, root, version
from caudal.server.tokenize_routes import detokenize, tokenize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from caudal.engine.engine_client import Engines
    from caudal.server.settings import ServedModel, ServerSettings
    from caudal.server.tokenizer_port import ServedTokenizer

    Handler = Callable[[Request, ServerContext], Awaitable[Response]]


def create_app(
    client: Engines, tokenizer: ServedTokenizer, model_info: ServedModel, settings: ServerSettings
) -> Starlette:
    """Return the app. It neither starts nor closes the client: whoever made it does."""
    context = ServerContext(client, tokenizer, model_info, settings)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        context.close()

    middleware = [Middleware(TidyPaths)]
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware, allow_origins=list(settings.allowed_origins), allow_methods=["*"], allow_headers=["*"]
            )
        )
    guard = (
        Middleware(RequireKey, api_keys=settings.api_keys)
        if settings.api_keys
        else Middleware(BrowserGuard, settings=settings)
    )
    middleware.append(guard)
    return Starlette(
        routes=_routes(context),
        middleware=middleware,
        exception_handlers={HTTPException: _http_exception},
        lifespan=lifespan,
    )


def _routes(context: ServerContext) -> list[Route]:
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/", root),
        ("GET", "/health", health),
        ("GET", "/v1/health", health),
        ("GET", "/ping", health),
        ("GET", "/version", version),
        ("GET", "/metrics", metrics),
        ("POST", "/tokenize", tokenize),
        ("POST", "/v1/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("POST", "/v1/detokenize", detokenize),
    ]
    for prefix in ("/v1", ""):
        table += [
            ("POST", f"{prefix}/chat/completions", chat_completions),
            ("POST", f"{prefix}/completions", completions),
            ("GET", f"{prefix}/models", list_models),
            ("GET", prefix + "/models/{model_id:path}", get_model),
        ]
    return [Route(path, _endpoint(handler, context), methods=[method]) for method, path, handler in table]


def _endpoint(handler: Handler, context: ServerContext) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler as Starlette calls it; whatever it raises becomes an error body."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request, context)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:  # noqa: BLE001 - the one place where nothing may pass
            return error_response(error)

    return endpoint


async def _http_exception(request: Request, error: Exception) -> Response:
    """Answer what Starlette's router refuses, in the shape of every other error."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]  # request.url would decode the query as well, which may be anything
    if error.status_code == 404:
        message = f"there is no route {path}; see the documentation for those that exist"
        return error_response(HTTPProblem(404, message, code="not_found"))
    if error.status_code == 405:
        headers = dict(error.headers or {})
        message = f"{request.method} is not allowed for {path}; use {headers.get('Allow')}"
        return error_response(HTTPProblem(405, message, code="method_not_allowed", headers=headers))
    return error_response(HTTPProblem(error.status_code, error.detail, headers=dict(error.headers or {})))
