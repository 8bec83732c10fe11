"""Chat messages in the forms that templates take.

Templates differ in what they accept: text or parts, arguments as a dict or as JSON, a system message or none,
strict turns of user and assistant, ids of a certain form.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caudal.errors import InvalidParameter

Message = dict[str, Any]
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))


def normalise(messages: Sequence[Mapping[str, Any]], source: str) -> list[Message]:
    """Return new messages: content is a string, tool arguments are dicts, roles are those that templates know.

    Args:
        messages: as OpenAI's API has them.
        source: the template, which may know more than usual.

    Raises InvalidParameter for messages that are malformed or hold something other than text.
    """
    if not messages:
        message = "messages is empty; expected at least one message"
        raise InvalidParameter(message, parameter="messages")
    names: dict[str, str] = {}  # tool call id -> name of the function
    return [_normalised(message, i, source, names) for i, message in enumerate(messages)]


def _normalised(message: Mapping[str, Any], index: int, source: str, names: dict[str, str]) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        fact = f"messages[{index}] has no role; expected an object with role and content"
        raise InvalidParameter(fact, parameter="messages")
    new = dict(message)
    role = {"developer": "system", "function": "tool"}.get(new["role"], new["role"])
    if not (new["role"] == "developer" and "developer" in source):
        new["role"] = role
    new["content"] = _text_of(new.get("content"), index)
    reasoning = next((new[k] for k in ("reasoning_content", "reasoning", "thinking") if new.get(k)), None)
    if isinstance(reasoning, str):
        new["reasoning_content"] = reasoning
        if ".thinking" in source:
            new["thinking"] = reasoning
    if new.get("tool_calls"):
        new["tool_calls"] = [_tool_call(call, index, names) for call in new["tool_calls"]]
    elif "tool_calls" in new:
        del new["tool_calls"]  # some templates only ask whether the key is there
    if role == "tool" and not new.get("name") and new.get("tool_call_id") in names:
        new["name"] = names[new["tool_call_id"]]
    return new


def _text_of(content: object, index: int) -> str:
    """Return content as one text: parts are joined with newlines, nothing is ""."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):  # a tool's result
        return json.dumps(content, ensure_ascii=False)
    if not isinstance(content, list | tuple):
        fact = f"messages[{index}].content is {type(content).__name__}; expected a string or a list of parts"
        raise InvalidParameter(fact, parameter="messages")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            fact = f"messages[{index}].content has a part of type {kind!r}; this model takes text parts only"
            raise InvalidParameter(fact, parameter="messages")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: object, index: int, names: dict[str, str]) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        fact = f"messages[{index}].tool_calls has an entry without a function; expected id, type and function"
        raise InvalidParameter(fact, parameter="messages")
    new_function = dict(function)
    arguments = new_function.get("arguments")
    if arguments is None or arguments == "":
        new_function["arguments"] = {}
    elif isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None  # a model's broken JSON, or nested too deeply: the text is all there is
        new_function["arguments"] = parsed if isinstance(parsed, dict) else arguments
    call_id, name = call.get("id"), new_function.get("name")
    if isinstance(call_id, str) and isinstance(name, str):
        names[call_id] = name
    return {"type": "function", **call, "function": new_function}


def as_parts(messages: list[Message]) -> list[Message]:
    """Return messages whose content is a list with one text part."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def attempts(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield the messages, then other forms of them: with one change each that makes a difference, two, and so on."""
    yield messages
    changes = [
        c for c in (_text_arguments, _short_ids, system_first, system_into_user, _joined) if c(messages) != messages
    ]
    for count in range(1, len(changes) + 1):
        for some in itertools.combinations(changes, count):
            changed = messages
            for change in some:
                changed = change(changed)
            yield changed


def system_into_user(messages: list[Message]) -> list[Message]:
    """Put leading system messages before the text of the first user message; later ones become user messages."""
    rest = list(itertools.dropwhile(lambda m: m["role"] == "system", messages))
    system = messages[: len(messages) - len(rest)]
    rest = [{**m, "role": "user"} if m["role"] == "system" else m for m in rest]
    if not system:
        return rest
    if rest and rest[0]["role"] == "user":
        return [_join([*system, rest[0]], rest[0]), *rest[1:]]
    return [_join(system, {**system[0], "role": "user"}), *rest]


def system_first(messages: list[Message]) -> list[Message]:
    """Join all system messages into one at the beginning."""
    system = [m for m in messages if m["role"] == "system"]
    if not system:
        return messages
    return [_join(system, system[0]), *(m for m in messages if m["role"] != "system")]


def _joined(messages: list[Message]) -> list[Message]:
    """Join neighbours of the same role, as long as neither calls a tool."""
    result: list[Message] = []
    for message in messages:
        last = result[-1] if result else None
        is_plain = message["role"] in ("system", "user", "assistant") and "tool_calls" not in message
        if last and is_plain and last["role"] == message["role"] and "tool_calls" not in last:
            result[-1] = _join([last, message], last)
        else:
            result.append(message)
    return result


def _join(messages: list[Message], frame: Message) -> Message:
    """Return `frame` with the contents of all messages, an empty line between."""
    contents = [m["content"] for m in messages]
    if all(isinstance(content, list) for content in contents):
        return {**frame, "content": [part for content in contents for part in content]}
    return {**frame, "content": "\n\n".join(contents)}


def _text_arguments(messages: list[Message]) -> list[Message]:
    """Return messages whose tool arguments are JSON."""

    def call_of(call: Message) -> Message:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": text}}

    return [{**m, "tool_calls": [call_of(c) for c in m["tool_calls"]]} if m.get("tool_calls") else m for m in messages]


def _short_ids(messages: list[Message]) -> list[Message]:
    """Give tool calls ids of nine letters and digits, the same for the same id, as Mistral's templates insist on."""

    def short(call_id: object) -> str:
        text = str(call_id)
        return (
            text
            if len(text) == 9 and text.isalnum()
            else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]
        )

    result = []
    for message in messages:
        new = dict(message)
        if new.get("tool_calls"):
            new["tool_calls"] = [{**c, "id": short(c.get("id"))} for c in new["tool_calls"]]
        if new["role"] == "tool":
            new["tool_call_id"] = short(new.get("tool_call_id"))
        result.append(new)
    return result
