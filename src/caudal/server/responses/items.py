"""Items of an answer, as a response holds them and as its events carry them.

Source: OpenAI API reference, "Responses"; the Open Responses specification, which wants every field there.
"""

from __future__ import annotations

import secrets

import msgspec
from msgspec import UNSET, UnsetType

from caudal.server.openai.chat_protocol import TokenLogprob  # noqa: TC001 - msgspec reads the annotations


def new_id(prefix: str) -> str:
    """Return an id for something whose ids begin so."""
    return f"{prefix}_{secrets.token_hex(16)}"


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """Text for the user."""

    text: str
    annotations: tuple[()] = ()
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    """The model's reasoning as it is."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, kw_only=True, tag="summary_text"):
    """The reasoning in the place of its summary, for clients that have asked for one and read nothing else."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """What the model says to the user."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought."""

    id: str
    status: str
    summary: list[SummaryText] = []
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function."""

    id: str
    status: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class CustomCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a tool whose input is a text."""

    id: str
    status: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem
