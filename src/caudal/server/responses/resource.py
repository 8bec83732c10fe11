"""The response object, with every field that OpenAI's clients and the Open Responses specification insist on.

Source: OpenAI API reference, "The response object"; the Open Responses specification.
"""

from __future__ import annotations

from typing import Any

import msgspec

from caudal.server.responses.items import OutputItem  # noqa: TC001 - msgspec reads the annotations

TERMINAL = ("completed", "incomplete", "failed", "cancelled")


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt came from the prefix cache. Writing to it costs nothing and is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ReasoningTokens(msgspec.Struct, frozen=True):
    """How many tokens the reasoning took."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: str


class ReasoningShown(msgspec.Struct, frozen=True):
    """What was asked for."""

    effort: str | None
    summary: str | None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response. `truncation` is what was done, which is nothing: a prompt that does not fit is refused."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningShown
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]
