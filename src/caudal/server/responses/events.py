"""The events of a stream of /v1/responses.

Source: OpenAI API reference, "Responses, streaming events".
"""

from __future__ import annotations

import msgspec

from caudal.server.openai.chat_protocol import TokenLogprob  # noqa: TC001 - msgspec reads the annotations
from caudal.server.responses.items import (  # noqa: TC001 - msgspec reads the annotations
    OutputItem,
    OutputText,
    ReasoningText,
    SummaryText,
)
from caudal.server.responses.resource import ResponseObject  # noqa: TC001 - msgspec reads the annotations


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The response as it is now: created, in progress, or ended."""

    type: str
    sequence_number: int = 0
    response: ResponseObject


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item begins, or is whole."""

    type: str
    sequence_number: int = 0
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an item's content begins, or is whole."""

    type: str
    sequence_number: int = 0
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class SummaryPartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a summary begins, or is whole."""

    type: str
    sequence_number: int = 0
    item_id: str
    output_index: int
    summary_index: int = 0
    part: SummaryText


class TextDeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More text for the user."""

    type: str = "response.output_text.delta"
    sequence_number: int = 0
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob]


class TextDoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of that text."""

    type: str = "response.output_text.done"
    sequence_number: int = 0
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More reasoning."""

    type: str = "response.reasoning_text.delta"
    sequence_number: int = 0
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningDoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of the reasoning."""

    type: str = "response.reasoning_text.done"
    sequence_number: int = 0
    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class SummaryDeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More reasoning, in the place of its summary."""

    type: str = "response.reasoning_summary_text.delta"
    sequence_number: int = 0
    item_id: str
    output_index: int
    summary_index: int = 0
    delta: str


class SummaryDoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    type: str = "response.reasoning_summary_text.done"
    sequence_number: int = 0
    item_id: str
    output_index: int
    summary_index: int = 0
    text: str


class CallDeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More of a call's arguments, or of a custom tool's input."""

    type: str
    sequence_number: int = 0
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of a call's arguments."""

    type: str = "response.function_call_arguments.done"
    sequence_number: int = 0
    item_id: str
    output_index: int
    name: str
    arguments: str


class InputDoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of a custom tool's input."""

    type: str = "response.custom_tool_call_input.done"
    sequence_number: int = 0
    item_id: str
    output_index: int
    input: str


AnswerEvent = (
    ItemEvent
    | PartEvent
    | SummaryPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | SummaryDeltaEvent
    | SummaryDoneEvent
    | CallDeltaEvent
    | ArgumentsDoneEvent
    | InputDoneEvent
)
