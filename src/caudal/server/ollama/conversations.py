"""From Ollama's messages, tools and `think` to a Conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.conversation import Conversation, ToolChoice
from caudal.server.left_out import left_out
from caudal.server.ollama.capabilities import thinks, uses_tools
from caudal.server.openai.chat_fields import MAX_TOOLS, checked_choice, tool_of
from caudal.server.openai.chat_protocol import NamedTool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.loaded_model import LoadedModel
    from caudal.server.ollama.protocol import AnswerRequest, ChatRequest, GenerateRequest, Message
    from caudal.server.openai.chat_protocol import Tool

_ROLES = ("system", "developer", "user", "assistant", "tool")
_EFFORTS = ("low", "medium", "high", "max")


def conversation_of(body: ChatRequest, model: LoadedModel) -> Conversation:
    """Return what a chat request asks of the model.

    Raises:
        RequestError: a field that makes no sense, or is not supported by the server or the model.
    """
    tools = _tools(body.tools or [])
    if tools and not uses_tools(model.tokenizer.chat_template_source):
        message = f"the model {model.name!r} does not support tools: its chat template has no place for them"
        raise UnsupportedParameter(message, parameter="tools")
    return Conversation(
        messages=_messages(body.messages or []),
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        variables=_think_variables(body, model),
        continue_final_message=_is_begun(body.messages or []),
    )


def _is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last message begins the answer, which then goes on from there."""
    return bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls


def prompt_conversation(body: GenerateRequest, model: LoadedModel) -> Conversation:
    """Return a generate request's prompt as a conversation of one turn."""
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt or ""})
    return Conversation(messages=messages, variables=_think_variables(body, model))


def refuse_images(images: Sequence[Any] | None) -> None:
    """Raise UnsupportedParameter if there are images."""
    if images:
        message = "images are not supported by this server; send text only"
        raise UnsupportedParameter(message, parameter="images")


def _think_variables(body: AnswerRequest, model: LoadedModel) -> dict[str, Any]:
    """Return the template variables by which models are told whether to think, and how much."""
    think = body.think
    if think is None or think == "":
        return {}
    if isinstance(think, str) and think not in _EFFORTS:
        message = f"think is {think!r}; expected true, false, {', '.join(_EFFORTS)}"
        raise InvalidParameter(message, parameter="think")
    if think and not thinks(model.tokenizer.chat_template_source):
        message = f"the model {model.name!r} does not support thinking; send think false, or leave it out"
        raise UnsupportedParameter(message, parameter="think")
    if isinstance(think, str):
        return {"enable_thinking": True, "reasoning_effort": think}
    return {"enable_thinking": think} if think else {"enable_thinking": False, "reasoning_effort": "none"}


def _tools(tools: Sequence[Tool]) -> tuple[dict[str, Any], ...]:
    if len(tools) > MAX_TOOLS:
        message = f"tools has {len(tools)} tools; expected at most {MAX_TOOLS}"
        raise InvalidParameter(message, parameter="tools")
    functions = []
    for tool in tools:
        if tool.type != "function" or tool.function is None:
            message = f"tools has a tool of type {tool.type!r}; only functions are supported"
            raise UnsupportedParameter(message, parameter="tools")
        functions.append(tool_of(tool.function))
    return tuple(functions)


def _tool_choice(body: ChatRequest, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    given = body.tool_choice
    if isinstance(given, NamedTool):
        if given.function is None:
            message = "tool_choice is an object without a function; expected {'function': {'name': ...}}"
            raise InvalidParameter(message, parameter="tool_choice")
        return checked_choice(ToolChoice(mode="required", name=given.function.name), tools, "tool_choice")
    if given in (None, "", "auto", "none", "required"):
        return checked_choice(ToolChoice(mode=given or "auto"), tools, "tool_choice")
    message = f"tool_choice is {given!r}; expected 'auto', 'none', 'required' or a function's name as an object"
    raise InvalidParameter(message, parameter="tool_choice")


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as OpenAI's API has them. Ollama's calls have no ids: results answer them in order."""
    plain: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # id and function of calls that have no result yet
    for message in messages:
        if message.role not in _ROLES:
            text = f"a message has role {message.role!r}; expected one of {', '.join(_ROLES)}"
            raise InvalidParameter(text, parameter="messages")
        new: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.thinking:
            new["reasoning_content"] = message.thinking
        if message.tool_calls:
            new["tool_calls"] = _calls(message, len(plain), open_calls)
        if message.role == "tool":
            _name_result(new, message, open_calls)
        plain.append(new)
    return plain


def _content(message: Message) -> str:
    """Return a message's text. Images are refused; in a tool's result they are replaced."""
    if message.role != "tool":
        refuse_images(message.images)
        return message.content or ""
    return "\n".join(text for text in (message.content, *(left_out("image") for _ in message.images or [])) if text)


def _calls(message: Message, index: int, open_calls: list[tuple[str, str]]) -> list[dict[str, Any]]:
    calls = []
    for number, call in enumerate(message.tool_calls or []):
        call_id = call.id or f"call_{index}_{number}"
        open_calls.append((call_id, call.function.name))
        arguments = {} if call.function.arguments is None else call.function.arguments
        function = {"name": call.function.name, "arguments": arguments}
        calls.append({"id": call_id, "type": "function", "function": function})
    return calls


def _name_result(new: dict[str, Any], message: Message, open_calls: list[tuple[str, str]]) -> None:
    """Say which call a result answers: the one named, else the first open one of that function, else the first."""
    name = message.tool_name or message.name
    answered = next((call for call in open_calls if call[0] == message.tool_call_id), None)
    answered = answered or next((call for call in open_calls if call[1] == name), None)
    answered = answered or (open_calls[0] if open_calls and name is None else None)
    if answered is not None:
        open_calls.remove(answered)
        new["tool_call_id"], name = answered[0], name or answered[1]
    elif message.tool_call_id is not None:
        new["tool_call_id"] = message.tool_call_id
    if name is not None:
        new["name"] = name
