"""What clients send to /v1/responses. Unknown fields are ignored.

Source: OpenAI API reference, "Responses"; the Open Responses specification.
"""

from __future__ import annotations

from typing import Any

import msgspec

REFUSED = ("conversation", "prompt")


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message, of reasoning, or of a tool's output."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item of any type; which fields it has depends on `type`. One with a role and no type is a message."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ContentPart] | None = None
    status: str | None = None
    phase: str | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's text must look like."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`text`; how many words to use is left to the model."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much to think, and whether the reasoning is to come as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ConversationBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of input_tokens, and what a request for a response has in common with it."""

    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    # Known, and refused unless they ask for nothing.
    conversation: Any = None
    prompt: Any = None


class ResponsesBody(ConversationBody, frozen=True, kw_only=True):
    """The body of a request for a response."""

    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
