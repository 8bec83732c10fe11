"""POST /v1/completions: the shapes of request and answer.

Source: OpenAI API reference, "Completions"; vLLM's extensions by their names.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from caudal.server.openai.sampling_fields import SamplingFields
from caudal.server.openai.usage import Usage  # noqa: TC001 - msgspec reads the annotations


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The request body. `prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    suffix: Any = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Four lists with an entry per token; None for the first token of an echoed prompt."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. In a stream, what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or one event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
