"""The routes that watchers use: health, version, metrics, and the root page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response

from caudal import __version__
from caudal.errors import EngineUnavailable
from caudal.server.problems import describe_error

if TYPE_CHECKING:
    from caudal.server.call import Call


async def health(call: Call) -> Response:
    """Answer 200 while requests are taken and steps make progress; 503 otherwise."""
    if call.context.models.healthy:
        return JSONResponse({"status": "ok"})
    return _unhealthy(call)


def _unhealthy(call: Call) -> Response:
    """Return a 503 whose body OpenAI's clients read, and llama-server's, which wait while it says that it loads."""
    loading = all(model.client.ready is None for model in call.context.models.loaded())
    sick = call.context.models.sick()
    of_whom = f" of {', '.join(sick)}" if sick and len(call.context.models.served()) > 1 else ""
    message = "Loading model" if loading else f"the engine{of_whom} is not ready, or its steps make no progress"
    problem = describe_error(EngineUnavailable(message))
    error = {"code": problem.status, "message": message, "type": "unavailable_error", "param": None}
    return JSONResponse({"error": error}, problem.status, problem.headers)


async def metrics(call: Call) -> Response:
    """Return the metrics for Prometheus."""
    return Response(call.context.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})


async def version(call: Call) -> Response:  # noqa: ARG001 - every handler's shape
    """Return Caudal's version."""
    return JSONResponse({"version": __version__})


async def root(call: Call) -> Response:  # noqa: ARG001 - the same
    """Say that somebody is here; some clients look before they speak."""
    return PlainTextResponse("Caudal is running\n")
