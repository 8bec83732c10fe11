"""The turns of a Messages request as Conversation has them.

A turn of the user's with results of tools becomes messages of role "tool" and then one of the user's text: templates
want the results right after the calls. Text blocks of one turn are joined with newlines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.anthropic.request_protocol import Block
from caudal.server.anthropic.tool_changes import ADDITION, REMOVAL, change_text
from caudal.server.left_out import left_out
from caudal.server.sealed_reasoning import unseal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.anthropic.request_protocol import InputMessage

BILLING_HEADER = "x-anthropic-billing-header"
"""A system block that begins so is for Anthropic's bookkeeping, and differs between conversations."""

_SERVER_BLOCKS = ("server_tool_use", "mcp_tool_use", "mcp_tool_result", "container_upload", "compaction")
_SERVER_RESULT = "_tool_result"


def messages_of(turns: Sequence[InputMessage], system: str | list[Block] | None) -> list[dict[str, Any]]:
    """Return the messages.

    Raises:
        RequestError: a role or a block that is not known, or is not supported.
    """
    messages: list[dict[str, Any]] = []
    instructions = _system_text(system)
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for turn in turns:
        if turn.role == "assistant":
            messages.append(_assistant_message(turn))
        elif turn.role == "user":
            messages += _user_messages(turn)
        elif turn.role == "system":
            text = _system_text(turn.content)
            messages += [{"role": "system", "content": text}] if text else []
        else:
            message = f"a message has role {turn.role!r}; expected 'user', 'assistant' or 'system'"
            raise InvalidParameter(message, parameter="messages")
    return messages


def _system_text(content: str | list[Block] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [_text_of(block) for block in content]
    return "\n".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _user_messages(turn: InputMessage) -> list[dict[str, Any]]:
    if isinstance(turn.content, str):
        return [{"role": "user", "content": turn.content}]
    results = [_tool_message(block) for block in turn.content if block.type == "tool_result"]
    texts = [_text_of(block) for block in turn.content if block.type != "tool_result"]
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _tool_message(block: Block) -> dict[str, Any]:
    if not block.tool_use_id:
        message = "a tool_result block has no tool_use_id; expected the id of the tool_use block that it answers"
        raise InvalidParameter(message, parameter="messages")
    content = block.content
    if isinstance(content, list):
        text = "\n".join(_result_text(part) for part in content)
    else:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    if block.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _result_text(block: Block) -> str:
    """Return the text of a block of a tool's result, or what stands in its place."""
    try:
        return _text_of(block)
    except UnsupportedParameter:
        text = left_out(block.type)
        if text is None:
            raise
        return text


def _assistant_message(turn: InputMessage) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in turn.content:
        if block.type == "thinking":
            reasoning.append(block.thinking or unseal(block.signature or ""))
        elif block.type == "tool_use":
            calls.append(_call(block))
        elif block.type != "redacted_thinking" and not _is_of_server(block.type):
            texts.append(_text_of(block))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "\n".join(text for text in reasoning if text)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Block) -> dict[str, Any]:
    if not block.id or not block.name:
        message = "a tool_use block has no id or no name; expected both, as the answer had them"
        raise InvalidParameter(message, parameter="messages")
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input or {}}}


def _is_of_server(kind: str) -> bool:
    """Whether a block tells what Anthropic's servers did: their tools are left out, and so is what they left."""
    return kind in _SERVER_BLOCKS or (kind.endswith(_SERVER_RESULT) and kind != "tool_result")


def _text_of(block: Block) -> str:
    """Return the text of a block that has one; raises UnsupportedParameter for the others."""
    if block.type == "text":
        return block.text or ""
    if block.type == "document":
        return _document_text(block)
    if block.type == "search_result":
        source = block.source if isinstance(block.source, str) else ""
        texts = [_text_of(part) for part in block.content] if isinstance(block.content, list) else []
        return "\n".join(text for text in (block.title or "", source, *texts) if text)
    if block.type in (ADDITION, REMOVAL):
        return change_text(block)
    if block.type == "tool_reference":
        return f"The tool {block.tool_name} can be called now."
    message = f"a message has a content block of type {block.type!r}, which this server does not read; send text"
    raise UnsupportedParameter(message, parameter="messages")


def _document_text(block: Block) -> str:
    source = block.source if isinstance(block.source, dict) else {}
    kind = source.get("type")
    text: object = None
    if kind == "text":
        text = source.get("data")
    elif kind == "content":
        text = source.get("content")
        if isinstance(text, list):
            text = "\n".join(_text_of(part) for part in _blocks(text))
    if not isinstance(text, str):
        message = f"a document's source is of type {kind!r}; only documents of type 'text' and 'content' can be read"
        raise UnsupportedParameter(message, parameter="messages")
    return "\n".join(part for part in (block.title or "", block.context or "", text) if part)


def _blocks(raw: list[Any]) -> list[Block]:
    try:
        return msgspec.convert(raw, list[Block])
    except msgspec.ValidationError as error:
        message = f"a document's content does not have the expected shape: {error}"
        raise InvalidParameter(message, parameter="messages") from error
