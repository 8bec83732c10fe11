"""Exceptions as HTTP answers in the OpenAI shape. The only place that knows which exception has which status.

The shape is {"error": {"message", "type", "param", "code"}}. Retries are asked for with `retry-after`, which the
official clients honour for 429 and every status from 500.
"""

from __future__ import annotations

import logging
import math

import msgspec
from starlette.responses import Response

from caudal.errors import (
    CaudalError,
    EngineDead,
    EngineUnavailable,
    Overloaded,
    PromptTooLong,
    RequestError,
    UnsupportedParameter,
)

log = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an error body."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """An error body, and the data of an error event in a stream."""

    error: ErrorDetail


class HTTPProblem(CaudalError):
    """A request refused for a reason that only HTTP knows: no key, no such route, a body too large.

    Args:
        status: the HTTP status.
        message: what was given, what was expected, what to do.
        code: the OpenAI error code.
        parameter: the field that it is about.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        parameter: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.parameter = parameter
        self.headers = headers or {}


def describe_error(error: Exception) -> tuple[int, ErrorBody, dict[str, str]]:
    """Return the status, the body and the headers that tell a client about an exception."""
    headers: dict[str, str] = {}
    text = str(error)
    if isinstance(error, HTTPProblem):
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        detail = ErrorDetail(text, kind, error.parameter, error.code)
        return error.status, ErrorBody(detail), error.headers
    if isinstance(error, RequestError):
        code = "invalid_value"
        if isinstance(error, PromptTooLong):
            code = "context_length_exceeded"
        elif isinstance(error, UnsupportedParameter):
            code = "unsupported_parameter"
        return 400, ErrorBody(ErrorDetail(text, "invalid_request_error", error.parameter, code)), headers
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
        return 429, ErrorBody(ErrorDetail(text, "rate_limit_error", None, "overloaded")), headers
    if isinstance(error, EngineUnavailable):
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
        return 503, ErrorBody(ErrorDetail(text, "server_error", None, "engine_unavailable")), headers
    if isinstance(error, CaudalError):
        code = "engine_dead" if isinstance(error, EngineDead) else "engine_error"
        return 500, ErrorBody(ErrorDetail(text, "server_error", None, code)), headers
    log.error("a request failed in the server", exc_info=error)
    message = "the server failed while it worked on this request; the reason is in its log"
    return 500, ErrorBody(ErrorDetail(message, "server_error", None, "internal_error")), headers


def error_response(error: Exception) -> Response:
    """Return the HTTP answer for an exception."""
    status, body, headers = describe_error(error)
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
