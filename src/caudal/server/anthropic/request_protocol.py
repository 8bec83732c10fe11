"""What clients send to /v1/messages and /v1/messages/count_tokens. Unknown fields are ignored.

Source: Anthropic API reference, "Messages", of the versions 2023-06-01 and 2026-10-21.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A content block of any type; which fields it has depends on `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    content: str | list[Block] | dict[str, Any] | None = None
    source: str | dict[str, Any] | None = None
    title: str | None = None
    context: str | None = None
    tool: dict[str, Any] | None = None


class InputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn; "system" may come in the middle."""

    role: str
    content: str | list[Block]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client's, or, with a `type` other than "custom", one that Anthropic's servers have."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoiceField(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tools may, must or must not be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingField(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model thinks aloud. A budget is not kept: models that Caudal serves take none."""

    type: str
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer must look like."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much effort to spend, and the answer's format."""

    effort: str | None = None
    format: OutputFormat | None = None


class ConversationBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of count_tokens, and what a request for a message has in common with it."""

    model: str
    messages: list[InputMessage]
    system: str | list[Block] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    # Known, and refused unless they ask for nothing.
    mcp_servers: Any = None
    container: Any = None


class MessagesBody(ConversationBody, frozen=True, kw_only=True):
    """The body of a request for a message."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
