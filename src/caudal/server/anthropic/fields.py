"""From the fields of a Messages request to a Conversation and SamplingParams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import SamplingParams
from caudal.server.anthropic.history import messages_of
from caudal.server.anthropic.tool_changes import tools_in_effect
from caudal.server.conversation import Conversation, ToolChoice
from caudal.server.openai.chat_fields import MAX_TOOLS, checked_choice, tool_of
from caudal.server.openai.chat_protocol import ToolFunction
from caudal.server.output_rules import OutputRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.anthropic.request_protocol import (
        ConversationBody,
        MessagesBody,
        ThinkingField,
        ToolDefinition,
    )

_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
_DISPLAYS = (None, "summarized", "omitted")


def conversation_of(body: ConversationBody) -> Conversation:
    """Return what a request asks of the model.

    Raises:
        RequestError: a field that makes no sense, or is not supported.
    """
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            message = f"{name} is not supported by this server; leave it out"
            raise UnsupportedParameter(message, parameter=name)
    tools = _tools(body)
    messages = messages_of(body.messages, body.system)
    return Conversation(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=not (body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use),
        continue_final_message=_is_begun(messages),
        variables=_variables(body),
    )


def _is_begun(messages: list[dict[str, Any]]) -> bool:
    """Whether the conversation ends with the beginning of the answer."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and bool(last["content"]) and not last.get("tool_calls")


def _tools(body: ConversationBody) -> tuple[dict[str, Any], ...]:
    shown = tools_in_effect(body)
    if len(shown) > MAX_TOOLS:
        message = f"tools has {len(shown)} tools; expected at most {MAX_TOOLS}"
        raise InvalidParameter(message, parameter="tools")
    return tuple(_tool(tool) for tool in shown)


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function = ToolFunction(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return tool_of(function)


def _tool_choice(body: ConversationBody, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return ToolChoice()
    if choice.type not in _MODES:
        message = f"tool_choice is of type {choice.type!r}; expected one of {', '.join(_MODES)}"
        raise InvalidParameter(message, parameter="tool_choice")
    if choice.type == "tool" and choice.name is None:
        message = "tool_choice of type 'tool' has no name; expected that of one of the tools"
        raise InvalidParameter(message, parameter="tool_choice")
    name = choice.name if choice.type == "tool" else None
    return checked_choice(ToolChoice(mode=_MODES[choice.type], name=name), tools, "tool_choice")


def _variables(body: ConversationBody) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = _thinks(body.thinking)
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is not None:
        if effort not in _EFFORTS:
            message = f"output_config.effort is {effort!r}; expected one of {', '.join(_EFFORTS)}"
            raise InvalidParameter(message, parameter="output_config")
        variables["reasoning_effort"] = _EFFORTS[effort]
    return variables


def _thinks(thinking: ThinkingField) -> bool:
    if thinking.type not in _THINKS:
        message = f"thinking is of type {thinking.type!r}; expected one of {', '.join(_THINKS)}"
        raise InvalidParameter(message, parameter="thinking")
    if thinking.display not in _DISPLAYS:
        message = f"thinking.display is {thinking.display!r}; expected 'summarized' or 'omitted'"
        raise InvalidParameter(message, parameter="thinking")
    return _THINKS[thinking.type]


def output_rule_of(body: ConversationBody) -> OutputRule | None:
    """Return what the answer must look like; None for nothing. output_format is the older name of output_config.format.

    Raises:
        InvalidParameter: the format makes no sense.
    """
    wanted = body.output_config.format if body.output_config is not None else None
    parameter = "output_format" if wanted is None else "output_config"
    wanted = wanted or body.output_format
    if wanted is None:
        return None
    if wanted.type != "json_schema" or wanted.schema is None:
        message = f"{parameter} has a format of type {wanted.type!r}; expected 'json_schema' with a schema"
        raise InvalidParameter(message, parameter=parameter)
    return OutputRule(kind="json_schema", value=wanted.schema, parameter=parameter)


def sampling_params(body: MessagesBody, max_tokens: int | None) -> SamplingParams:
    """Return the request's SamplingParams.

    Raises:
        InvalidParameter: a value outside its range; names the field.
    """
    if body.max_tokens < 1:
        message = f"max_tokens is {body.max_tokens}; expected at least 1"
        raise InvalidParameter(message, parameter="max_tokens")
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
    return SamplingParams(
        max_tokens=max_tokens,
        stop=tuple(body.stop_sequences or ()),
        **{name: value for name, value in given.items() if value is not None},
    )
