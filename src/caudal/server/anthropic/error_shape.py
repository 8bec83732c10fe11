"""Errors as Anthropic's API writes them.

Source: Anthropic API reference, "Errors".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from caudal.server.problems import Problem

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    """What kind of error, and a sentence about it."""

    type: str
    message: str


class MessagesError(msgspec.Struct, frozen=True, tag="error", kw_only=True):
    """An error body, and the data of an error event."""

    error: MessagesErrorDetail
    request_id: str | None = None


def anthropic_shape(problem: Problem) -> bytes:
    """Return {"type": "error", "error": {"type", "message"}, "request_id"}."""
    other = "api_error" if problem.status >= 500 else "invalid_request_error"
    detail = MessagesErrorDetail(_TYPES.get(problem.status, other), problem.message)
    return msgspec.json.encode(MessagesError(error=detail, request_id=problem.request_id))
