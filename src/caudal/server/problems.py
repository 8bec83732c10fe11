"""Exceptions as what a client is told: a status, a kind, a sentence. The only place that knows which has which status.

Each API writes a Problem in its own shape (see ErrorShape). Retries are asked for with `retry-after`, which the
official clients honour for 429 and every status from 500.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from starlette.responses import Response

from caudal.errors import (
    CaudalError,
    EngineDead,
    EngineUnavailable,
    LibraryError,
    Overloaded,
    PromptTooLong,
    RequestError,
    UnsupportedParameter,
)
from caudal.server.request_record import record_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a client is told.

    Attributes:
        status: the HTTP status.
        message: what was given, what was expected, what to do.
        code: OpenAI's error code, which names the fact: "context_length_exceeded", "model_not_found", ...
        parameter: the field that it is about.
        headers: further headers of the answer.
        request_id: of the request that it is about; only some APIs write it.
        num_prompt_tokens, max_model_len: of a prompt that does not fit.
    """

    status: int
    message: str
    code: str | None = None
    parameter: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    request_id: str | None = None
    num_prompt_tokens: int | None = None
    max_model_len: int | None = None


ErrorShape: TypeAlias = "Callable[[Problem], bytes]"
"""Writes the error body, or the data of an error event, of one API."""


class HTTPProblem(CaudalError):
    """A request refused for a reason that only HTTP knows: no key, no such route, a body too large. See Problem."""

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
        self.problem = Problem(
            status=status, message=message, code=code, parameter=parameter, headers=dict(headers or {})
        )


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


_MAX_MESSAGE_CHARS = 2000


_LIBRARY_STATUS = {
    "name": 400,
    "unknown": 404,
    "exists": 409,
    "fixed": 403,
    "busy": 409,
    "offline": 403,
    "network": 502,
    "full": 507,
    "disk": 500,
}


def describe_error(error: Exception) -> Problem:
    """Return what tells a client about an exception.

    A message may quote what was sent, but not at any length; addresses of this process's memory are nobody's business.
    """
    problem = _problem_of(error)
    message = _ADDRESS.sub("0x...", problem.message[:_MAX_MESSAGE_CHARS])
    if len(problem.message) > _MAX_MESSAGE_CHARS:
        message += " ..."
    return problem if message == problem.message else replace(problem, message=message)


def _problem_of(error: Exception) -> Problem:
    text = str(error)
    if isinstance(error, HTTPProblem):
        return error.problem
    if isinstance(error, RequestError):
        return _refused(error)
    if isinstance(error, Overloaded):
        return Problem(status=429, message=text, code="overloaded", headers=_retry_after(error.retry_after_s))
    if isinstance(error, EngineUnavailable):
        return Problem(status=503, message=text, code="engine_unavailable", headers=_retry_after(error.retry_after_s))
    if isinstance(error, CaudalError):
        return _failed(error)
    log.error("a request failed in the server", exc_info=error)
    message = "the server failed while it worked on this request; the reason is in its log"
    return Problem(status=500, message=message, code="internal_error")


def _failed(error: CaudalError) -> Problem:
    text = str(error)
    if isinstance(error, LibraryError):
        return Problem(status=_LIBRARY_STATUS[error.reason], message=text, code=f"models_{error.reason}")
    path = getattr(error, "path", None)
    if path is not None:  # where a model lies is the administrator's business
        log.error("a request failed: %s", text)
        text = text.replace(str(path), Path(str(path)).name)
    return Problem(status=500, message=text, code="engine_dead" if isinstance(error, EngineDead) else "engine_error")


def _refused(error: RequestError) -> Problem:
    code = "unsupported_parameter" if isinstance(error, UnsupportedParameter) else "invalid_value"
    problem = Problem(status=400, message=str(error), code=code, parameter=error.parameter)
    if not isinstance(error, PromptTooLong):
        return problem
    return replace(
        problem,
        code="context_length_exceeded",
        num_prompt_tokens=error.num_prompt_tokens,
        max_model_len=error.max_model_len,
    )


def _retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(seconds))}


class ErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an error body of OpenAI's API."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """An error body of OpenAI's API."""

    error: ErrorDetail


def openai_shape(problem: Problem) -> bytes:
    """Return {"error": {"message", "type", "param", "code"}}, which is also what routes of no API answer."""
    kind = "invalid_request_error"
    if problem.code == "overloaded" or problem.status == 429:
        kind = "rate_limit_error"
    elif problem.status >= 500:
        kind = "server_error"
    return msgspec.json.encode(ErrorBody(ErrorDetail(problem.message, kind, problem.parameter, problem.code)))


class ErrorResponse(Response):
    """The HTTP answer that tells of a problem. It notes the problem in the request's record."""

    def __init__(self, problem: Problem, shape: ErrorShape) -> None:
        super().__init__(shape(problem), problem.status, problem.headers, media_type="application/json")
        self._problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        record = record_of(scope)
        if record is not None:
            record.problem = self._problem
        await super().__call__(scope, receive, send)


def error_response(error: Exception, shape: ErrorShape = openai_shape, request_id: str | None = None) -> Response:
    """Return the HTTP answer for an exception."""
    return ErrorResponse(replace(describe_error(error), request_id=request_id), shape)
