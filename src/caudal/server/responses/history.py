"""The items of a conversation as Conversation has its messages.

The model's own items in a row (reasoning, text, calls) become one assistant message, as templates want them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.left_out import left_out
from caudal.server.sealed_reasoning import unseal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.responses.request_protocol import ContentPart, InputItem
    from caudal.server.responses.tools import ToolNames

_ROLES = ("user", "system", "developer", "assistant")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_HOSTED = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
)
"""What tools did that run at OpenAI's: such tools are left out here, and so is what they left."""


def messages_of(items: Sequence[InputItem], instructions: str | None, names: ToolNames) -> list[dict[str, Any]]:
    """Return the messages.

    Args:
        items: item references are resolved already.
        instructions: come first.
        names: how the model knows the tools.

    Raises:
        RequestError: an item, a role or a part that is not known, or is not supported.
    """
    history = _History()
    if instructions:
        history.add({"role": "system", "content": instructions})
    for item in items:
        _add(history, item, names)
    return history.messages()


class _History:
    """Messages, and the assistant's one that is being put together."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._own: dict[str, Any] | None = None

    def messages(self) -> list[dict[str, Any]]:
        self._flush()
        return self._messages

    def add(self, message: dict[str, Any]) -> None:
        self._flush()
        self._messages.append(message)

    def text(self, text: str) -> None:
        if self._own is not None and self._own["content"] and "tool_calls" not in self._own:
            self._flush()
        own = self._begun()
        own["content"] = f"{own['content']}\n{text}" if own["content"] else text

    def reasoning(self, text: str) -> None:
        if self._own is not None and (self._own["content"] or "tool_calls" in self._own):
            self._flush()
        own = self._begun()
        own["reasoning_content"] = own.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        self._begun().setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _begun(self) -> dict[str, Any]:
        if self._own is None:
            self._own = {"role": "assistant", "content": ""}
        return self._own

    def _flush(self) -> None:
        if self._own is not None:
            self._messages.append(self._own)
            self._own = None


def _add(history: _History, item: InputItem, names: ToolNames) -> None:
    kind = item.type or ("message" if item.role else "item_reference")
    if kind == "message":
        _add_message(history, item)
    elif kind == "reasoning":
        text = reasoning_of(item)
        if text:
            history.reasoning(text)
    elif kind in ("function_call", "custom_tool_call"):
        arguments = item.arguments or "{}" if kind == "function_call" else json.dumps({"input": item.input or ""})
        name = names.flat(item.namespace, _given(item.name, kind, "name"))
        history.call(_given(item.call_id, kind, "call_id"), name, arguments)
    elif kind in _OUTPUTS:
        call_id = _given(item.call_id, kind, "call_id")
        history.add({"role": "tool", "tool_call_id": call_id, "content": _text_of(item.output, is_result=True)})
    elif kind not in _HOSTED:
        message = f"input has an item of type {kind!r}, which this server does not read; leave it out"
        raise UnsupportedParameter(message, parameter="input")


def _add_message(history: _History, item: InputItem) -> None:
    if item.role not in _ROLES:
        message = f"input has a message of role {item.role!r}; expected one of {', '.join(_ROLES)}"
        raise InvalidParameter(message, parameter="input")
    text = _text_of(item.content)
    if item.role == "assistant":
        history.text(text)
    else:
        history.add({"role": item.role, "content": text})


def reasoning_of(item: InputItem) -> str:
    """Return the text of a reasoning item, wherever it is kept."""
    return _text_of(item.content) or _text_of(item.summary) or unseal(item.encrypted_content or "")


def _given(value: str | None, kind: str, name: str) -> str:
    if not value:
        message = f"input has an item of type {kind!r} without {name}; expected it as the answer had it"
        raise InvalidParameter(message, parameter="input")
    return value


def _text_of(content: str | list[ContentPart] | None, *, is_result: bool = False) -> str:
    """Return the text of parts; in a tool's result, other parts are replaced instead of refused."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        is_text = part.type in _TEXT_PARTS or part.type == "refusal"
        text = part.refusal if part.type == "refusal" else part.text if is_text else None
        if text is None and is_result:
            text = left_out(part.type)
        if text is None:
            message = f"input has a content part of type {part.type!r}; only parts of text are supported"
            raise UnsupportedParameter(message, parameter="input")
        texts.append(text)
    return "\n".join(texts)
