"""The routes that watchers use: health, version, metrics, and the root page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response

from caudal import __version__
from caudal.errors import EngineUnavailable

if TYPE_CHECKING:
    from starlette.requests import Request

    from caudal.server.context import ServerContext


async def health(request: Request, context: ServerContext) -> Response:  # noqa: ARG001 - every handler's shape
    """Answer 200 while requests are taken and steps make progress; 503 otherwise."""
    if context.client.healthy:
        return JSONResponse({"status": "ok"})
    message = "the engine is not ready, or its steps make no progress"
    raise EngineUnavailable(message)


async def metrics(request: Request, context: ServerContext) -> Response:  # noqa: ARG001 - the same
    """Return the metrics for Prometheus."""
    return Response(context.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})


async def version(request: Request, context: ServerContext) -> Response:  # noqa: ARG001 - the same
    """Return Caudal's version."""
    return JSONResponse({"version": __version__})


async def root(request: Request, context: ServerContext) -> Response:  # noqa: ARG001 - the same
    """Say that somebody is here; some clients look before they speak."""
    return PlainTextResponse("Caudal is running\n")
