"""From the fields of a Responses request to a Conversation, SamplingParams and the response at its beginning."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import MAX_LOGPROBS, SamplingParams
from caudal.server.conversation import Conversation
from caudal.server.output_rules import OutputRule
from caudal.server.responses.history import messages_of
from caudal.server.responses.items import new_id
from caudal.server.responses.request_protocol import REFUSED
from caudal.server.responses.resource import ReasoningShown, ResponseObject
from caudal.server.responses.tools import Tools, chosen, tools_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.responses.request_protocol import ConversationBody, InputItem, ResponsesBody

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
MAX_METADATA = 16
_MAX_METADATA_KEY_CHARS = 64
_MAX_METADATA_CHARS = 512
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_PASSED_ON = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed")


def check_fields(body: ConversationBody) -> None:
    """Raise UnsupportedParameter for a field that is set and not supported."""
    for name in REFUSED:
        if getattr(body, name):
            message = f"{name} is not supported by this server; leave it out"
            raise UnsupportedParameter(message, parameter=name)
    if body.truncation not in (None, "auto", "disabled"):
        message = f"truncation is {body.truncation!r}; expected 'auto' or 'disabled'"
        raise InvalidParameter(message, parameter="truncation")


def output_rule_of(body: ConversationBody) -> OutputRule | None:
    """Return what the answer must look like; None for nothing.

    Raises:
        InvalidParameter: the format makes no sense.
    """
    wanted = body.text.format if body.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return OutputRule(kind="json_object", parameter="text")
    if wanted.type == "json_schema" and wanted.schema is not None:
        return OutputRule(kind="json_schema", value=wanted.schema, parameter="text", strict=bool(wanted.strict))
    message = f"text.format is {wanted.type!r}; expected 'text', 'json_object', or 'json_schema' with a schema"
    raise InvalidParameter(message, parameter="text")


def check_own_fields(body: ResponsesBody) -> None:
    """Raise RequestError for fields of a request for a response that make no sense."""
    if body.background and body.store is False:
        message = "background needs the response to be kept; leave store out, or send background false"
        raise InvalidParameter(message, parameter="background")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        message = f"max_output_tokens is {body.max_output_tokens}; expected at least 1"
        raise InvalidParameter(message, parameter="max_output_tokens")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        message = f"top_logprobs is {body.top_logprobs}; expected a number from 0 to {MAX_LOGPROBS}"
        raise InvalidParameter(message, parameter="top_logprobs")
    metadata = body.metadata or {}
    if len(metadata) > MAX_METADATA or any(
        len(key) > _MAX_METADATA_KEY_CHARS or len(value) > _MAX_METADATA_CHARS for key, value in metadata.items()
    ):
        message = (
            f"metadata is too large; expected at most {MAX_METADATA} pairs, keys of {_MAX_METADATA_KEY_CHARS} "
            f"characters and values of {_MAX_METADATA_CHARS}"
        )
        raise InvalidParameter(message, parameter="metadata")


def conversation_of(body: ConversationBody, items: Sequence[InputItem], tools: Tools) -> Conversation:
    """Return what a request asks of the model.

    Args:
        body: the request.
        items: the conversation, earlier responses included.
        tools: the request's.

    Raises:
        RequestError: a field that makes no sense, or is not supported.
    """
    choice, functions = chosen(body.tool_choice, tools)
    messages = messages_of(items, body.instructions, tools.names)
    if not messages:
        message = "input is empty; expected a text or at least one item"
        raise InvalidParameter(message, parameter="input")
    return Conversation(
        messages=messages,
        tools=functions,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        variables=_variables(body),
    )


def request_tools(body: ConversationBody) -> Tools:
    """Return the request's tools."""
    return tools_of(body.tools or [])


def _variables(body: ConversationBody) -> dict[str, Any]:
    effort = body.reasoning.effort if body.reasoning is not None else None
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "reasoning_effort": "none"}
    if effort not in _EFFORTS:
        message = f"reasoning.effort is {effort!r}; expected 'none' or one of {', '.join(_EFFORTS)}"
        raise InvalidParameter(message, parameter="reasoning")
    return {"enable_thinking": True, "reasoning_effort": _EFFORTS[effort]}


def wants_logprobs(body: ResponsesBody) -> bool:
    """Whether the text comes with log-probabilities."""
    return LOGPROBS in (body.include or []) or bool(body.top_logprobs)


def wants_summary(body: ResponsesBody) -> bool:
    """Whether reasoning comes in the place of a summary."""
    return body.reasoning is not None and bool(body.reasoning.summary or body.reasoning.generate_summary)


def sampling_params(body: ResponsesBody, max_tokens: int | None) -> SamplingParams:
    """Return the request's SamplingParams; raises InvalidParameter for a value outside its range."""
    given = {name: getattr(body, name) for name in _PASSED_ON}
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if wants_logprobs(body) else None,
        **{name: value for name, value in given.items() if value is not None},
    )


def new_response(body: ResponsesBody, tools: Tools, params: SamplingParams) -> ResponseObject:
    """Return the response as it is before its answer."""
    reasoning = body.reasoning
    return ResponseObject(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=body.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningShown(
            effort=reasoning.effort if reasoning is not None else None,
            summary=(reasoning.summary or reasoning.generate_summary) if reasoning is not None else None,
        ),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=params.temperature,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        text=_shown_text(body),
        tool_choice=body.tool_choice if body.tool_choice is not None else "auto",
        tools=tools.shown,
        top_logprobs=body.top_logprobs or 0,
        user=body.user,
        metadata=dict(body.metadata or {}),
    )


def _shown_text(body: ResponsesBody) -> dict[str, Any]:
    wanted = body.text.format if body.text is not None else None
    shown: dict[str, Any] = {"format": {"type": "text"}}
    if wanted is not None and wanted.type != "text":
        given = {name: getattr(wanted, name) for name in ("name", "description", "schema", "strict")}
        kept = given if wanted.type == "json_schema" else {}
        shown = {"format": {"type": wanted.type, **kept}}
    if body.text is not None and body.text.verbosity is not None:
        shown["verbosity"] = body.text.verbosity
    return shown


def prompt_failure(body: ResponsesBody) -> ResponseObject:
    """Return the response that stands for one whose prompt does not fit."""
    return msgspec.structs.replace(new_response(body, request_tools(body), SamplingParams()), store=False)
