"""The HTTP application: every route, with keys, tidy paths and error bodies around them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from caudal.server.auth import KeyGate
from caudal.server.context import ServerContext
from caudal.server.metrics import ServerMetrics
from caudal.server.model_directory import OneModel
from caudal.server.paths import TidyPaths
from caudal.server.problems import HTTPProblem, error_response
from caudal.server.request_ids import RequestIds
from caudal.server.routes import routes, shape_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from caudal.engine.engine_client import Engines
    from caudal.server.settings import ServedModel, ServerSettings
    from caudal.server.tokenizer_port import ServedTokenizer


def create_app(
    client: Engines, tokenizer: ServedTokenizer, model_info: ServedModel, settings: ServerSettings
) -> Starlette:
    """Return an app of one model. It neither starts nor closes the client: whoever made it does."""
    metrics = ServerMetrics()
    models = OneModel(client, tokenizer, model_info, metrics)
    return app_of(ServerContext(models, settings, metrics))


def app_of(context: ServerContext) -> Starlette:
    """Return the app of a context."""
    settings = context.settings

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await context.responses.close()
        context.models.close()
        await asyncio.to_thread(context.accounts.close)

    middleware = [Middleware(RequestIds), Middleware(TidyPaths)]
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware, allow_origins=list(settings.allowed_origins), allow_methods=["*"], allow_headers=["*"]
            )
        )
    middleware.append(Middleware(KeyGate, settings=settings, accounts=context.accounts, shape_of=shape_of))
    app = Starlette(
        routes=routes(context),
        middleware=middleware,
        exception_handlers={HTTPException: _http_exception},
        lifespan=lifespan,
    )
    app.state.context = context
    return app


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
