"""What /v1/messages answers: a message, or the events of a stream.

Every field that the API reference gives is there, with null where Caudal has nothing to say, because strict clients
insist. Source: Anthropic API reference, "Messages" and "Streaming Messages".
"""

from __future__ import annotations

from typing import Any

import msgspec


class CacheCreation(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens written to Anthropic's cache, which has no like here: the prefix cache costs nothing to fill."""

    ephemeral_1h_input_tokens: int = 0
    ephemeral_5m_input_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens the reasoning took."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The prompt is input_tokens and cache_read_input_tokens together."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    cache_creation: CacheCreation = CacheCreation()
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    inference_geo: None = None
    server_tool_use: None = None
    service_tier: str = "standard"


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Text for the user."""

    text: str = ""
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    """Reasoning; see caudal.server.sealed_reasoning for the signature."""

    thinking: str = ""
    signature: str = ""


class DirectCaller(msgspec.Struct, frozen=True, tag="direct"):
    """The model itself called the tool."""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller = DirectCaller()


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """The whole answer."""

    id: str
    role: str = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None = None
    container: None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    """The first event: the message without content."""

    message: AnswerMessage


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag="signature_delta"):
    """The signature, before a thinking block stops."""

    signature: str


class InputJSONDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    """More of a call's input, as JSON text."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJSONDelta


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    """A block is whole."""

    index: int


class StopDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Why the answer ended."""

    stop_reason: str
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag="message_delta"):
    """The end of the answer, with the counts so far."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    """The last event."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Fills silence."""


BlockEvent = BlockStart | BlockDelta | BlockStop
Event = MessageStart | BlockEvent | MessageDelta | MessageStop | Ping


class TokenCount(msgspec.Struct, frozen=True):
    """What count_tokens answers."""

    input_tokens: int
