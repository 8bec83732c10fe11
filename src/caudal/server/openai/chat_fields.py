"""From the fields of a chat request to a Conversation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import MAX_LOGPROBS
from caudal.server.conversation import Conversation, ToolChoice
from caudal.server.left_out import left_out
from caudal.server.openai.chat_protocol import NamedFunction, NamedTool, ToolFunction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.openai.chat_protocol import ChatMessage, ChatRequest

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_RESULTS = ("tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
MAX_TOOLS = 1024
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,256}")


def conversation_of(body: ChatRequest) -> Conversation:
    """Return what a request asks of the model.

    Raises:
        RequestError: a field that makes no sense, or is not supported.
    """
    if body.continue_final_message and body.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other; send one of them"
        raise InvalidParameter(message, parameter="continue_final_message")
    tools = tuple(tool_of(function) for function in _functions(body))
    if len(tools) > MAX_TOOLS:
        message = f"tools has {len(tools)} tools; expected at most {MAX_TOOLS}"
        raise InvalidParameter(message, parameter="tools")
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    return Conversation(
        messages=[template_message(message) for message in body.messages],
        tools=tools,
        tool_choice=tool_choice_of(body, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        variables=variables,
        separates_reasoning=_separates_reasoning(body),
    )


def _separates_reasoning(body: ChatRequest) -> bool:
    """Return whether reasoning is told apart from content; reasoning_format is llama.cpp's way to say so."""
    given = body.reasoning_format
    if given in (None, "", "auto", "deepseek"):
        return True
    if given == "none":
        return False
    message = f"reasoning_format is {given!r}; expected 'auto', 'deepseek' or 'none'"
    if given == "deepseek-legacy":
        raise UnsupportedParameter(message, parameter="reasoning_format")
    raise InvalidParameter(message, parameter="reasoning_format")


def _functions(body: ChatRequest) -> list[ToolFunction]:
    """Return the functions of the tools, or those of the older field; tools of other kinds are refused."""
    functions = []
    for tool in body.tools or []:
        if tool.type != "function" or tool.function is None:
            message = f"tools has a tool of type {tool.type!r}; only functions are supported"
            raise UnsupportedParameter(message, parameter="tools")
        functions.append(tool.function)
    return functions or list(body.functions or [])


def tool_of(function: ToolFunction) -> dict[str, Any]:
    """Return a function as Conversation has it."""
    if not _TOOL_NAME.fullmatch(function.name):
        allowed = "1 to 256 letters, digits, and any of _ . : / -"
        message = f"tools has a function named {function.name[:64]!r}; expected {allowed}"
        raise InvalidParameter(message, parameter="tools")
    tool: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        tool["description"] = function.description
    tool["parameters"] = function.parameters or {"type": "object", "properties": {}}
    if function.strict:
        tool["strict"] = True
    return tool


def tool_choice_of(body: ChatRequest, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    """Return which tools may be called; function_call is the older name of tool_choice."""
    given = body.tool_choice if body.tool_choice is not None else body.function_call
    field = "tool_choice" if body.tool_choice is not None else "function_call"
    if isinstance(given, NamedTool):
        given = given.function
        if given is None:
            message = (
                "tool_choice is an object without a function; expected {'type': 'function', 'function': {'name': ...}}"
            )
            raise InvalidParameter(message, parameter=field)
    if isinstance(given, NamedFunction):
        return checked_choice(ToolChoice(mode="required", name=given.name), tools, field)
    if given in (None, "auto", "none", "required"):
        return checked_choice(ToolChoice(mode=given or "auto"), tools, field)
    message = f"{field} is {given!r}; expected 'auto', 'none', 'required' or a function's name as an object"
    raise InvalidParameter(message, parameter=field)


def checked_choice(choice: ToolChoice, tools: Sequence[dict[str, Any]], field: str) -> ToolChoice:
    """Return a choice that the tools allow; raises InvalidParameter otherwise."""
    if choice.mode == "required" and not tools:
        message = f"{field} wants a tool to be called, but there are no tools; send tools, or leave {field} out"
        raise InvalidParameter(message, parameter=field)
    if choice.name is not None and choice.name not in [tool["name"] for tool in tools]:
        message = f"{field} names {choice.name!r}, which is not among the tools"
        raise InvalidParameter(message, parameter=field)
    return choice


def num_logprobs(body: ChatRequest) -> int | None:
    """Return how many log-probabilities each token is to have; None for none."""
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        message = f"top_logprobs is {body.top_logprobs}; expected a number from 0 to {MAX_LOGPROBS}"
        raise InvalidParameter(message, parameter="top_logprobs")
    if not body.logprobs:
        if body.top_logprobs:
            message = "top_logprobs needs logprobs; send logprobs true, or leave top_logprobs out"
            raise InvalidParameter(message, parameter="top_logprobs")
        return None
    return body.top_logprobs or 0


def template_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as the tokenizer takes it: one of the API's roles, content as one string."""
    if message.role not in _ROLES:
        text = f"a message has role {message.role!r}; expected one of {', '.join(_ROLES)}"
        raise InvalidParameter(text, parameter="messages")
    plain: dict[str, Any] = {"role": message.role, "content": _content_text(message)}
    for name in ("name", "tool_calls", "tool_call_id"):
        if getattr(message, name) is not None:
            plain[name] = getattr(message, name)
    if message.function_call is not None and message.tool_calls is None:
        plain["tool_calls"] = [{"type": "function", "function": message.function_call}]
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        plain["reasoning_content"] = reasoning
    return plain


def _content_text(message: ChatMessage) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for part in message.content:
        is_text = part.type in _TEXT_PARTS
        text = part.refusal if part.type == "refusal" else part.text if is_text else None
        if text is None and message.role in _RESULTS:
            text = left_out(part.type)
        if text is None:
            wanted = f"a message has a content part of type {part.type!r}; only parts of text are supported"
            raise UnsupportedParameter(wanted, parameter="messages")
        texts.append(text)
    return "\n".join(texts)
