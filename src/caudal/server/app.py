"""The HTTP application: every route, with keys, tidy paths and error bodies around them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from caudal.server.access_log import AccessLog
from caudal.server.auth import KeyGate
from caudal.server.context import ServerContext
from caudal.server.metrics import ServerMetrics
from caudal.server.model_directory import OneModel
from caudal.server.paths import TidyPaths
from caudal.server.problems import HTTPProblem, error_response
from caudal.server.request_record import Recording
from caudal.server.routes import routes, shape_of
from caudal.server.tracing import open_tracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from caudal.engine.engine_client import Engines
    from caudal.server.request_record import Watcher
    from caudal.server.settings import ServedModel, ServerSettings
    from caudal.server.tokenizer_port import ServedTokenizer


_LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"


def create_app(
    client: Engines, tokenizer: ServedTokenizer, model_info: ServedModel, settings: ServerSettings
) -> Starlette:
    """Return an app of one model. It neither starts nor closes the client: whoever made it does."""
    metrics = ServerMetrics(per_key=settings.metrics_per_key)
    models = OneModel(client, tokenizer, model_info, metrics)
    return app_of(ServerContext(models, settings, metrics))


def app_of(context: ServerContext, watchers: Sequence[Watcher] = ()) -> Starlette:
    """Return the app of a context. The watchers see every request's record, beside those that the settings name."""
    settings = context.settings
    tracer = open_tracer(settings.otlp_traces_endpoint) if settings.otlp_traces_endpoint else None

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await context.responses.close()
        context.models.close()
        await asyncio.to_thread(context.accounts.close)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    watchers = [context.metrics.answered, *watchers]
    if settings.access_log != "off":
        watchers.append(AccessLog(settings.access_log).write)
    if tracer is not None:
        watchers.append(tracer.report)
    middleware = [Middleware(Recording, watchers=tuple(watchers)), Middleware(TidyPaths)]
    middleware.append(
        Middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_origin_regex=_LOOPBACK_ORIGIN,
            allow_methods=["*"],
            allow_headers=["*"],
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
    shape = shape_of(request.method, path)
    if error.status_code == 404:
        message = f"there is no route {path}; see the documentation for those that exist"
        return error_response(HTTPProblem(404, message, code="not_found"), shape)
    if error.status_code == 405:
        headers = dict(error.headers or {})
        message = f"{request.method} is not allowed for {path}; use {headers.get('Allow')}"
        return error_response(HTTPProblem(405, message, code="method_not_allowed", headers=headers), shape)
    return error_response(HTTPProblem(error.status_code, error.detail, headers=dict(error.headers or {})), shape)
