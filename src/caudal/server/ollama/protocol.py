"""The shapes of Ollama's requests and answers.

Source: Ollama's API reference ("API", "Streaming", "Errors").
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from caudal.server.openai.chat_protocol import NamedTool, Tool  # noqa: TC001 - msgspec reads the annotations


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. Options of loading (num_ctx, num_gpu, ...) are the server's business and ignored."""

    num_predict: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    # Known, and refused unless they ask for nothing.
    mirostat: int | None = None
    tfs_z: float | None = None


class AnswerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and generate have in common. `truncate` and `shift` are ignored: nothing is ever cut away."""

    model: str | None = None
    stream: bool | None = None
    options: Options | None = None
    format: Any = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model has made; its arguments are an object."""

    name: str
    arguments: dict[str, Any] | str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in a message."""

    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    images: list[Any] | None = None


class ChatRequest(AnswerRequest, frozen=True, kw_only=True):
    """POST /api/chat."""

    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedTool | None = None


class GenerateRequest(AnswerRequest, frozen=True, kw_only=True):
    """POST /api/generate."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[Any] | None = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request about one model; `name` is the older name of the field."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    verbose: bool | None = None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its log-probability, with the likeliest at its place if it is one of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob] | UnsetType = UNSET
