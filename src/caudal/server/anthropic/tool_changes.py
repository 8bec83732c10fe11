"""Which tools a conversation has in the end: those that are deferred, added and removed on its way.

Source: Anthropic API reference, "Tool search tool" and "Messages", the blocks tool_reference, tool_addition and
tool_removal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.anthropic.request_protocol import ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caudal.server.anthropic.request_protocol import Block, ConversationBody

ADDITION = "tool_addition"
REMOVAL = "tool_removal"


def tools_in_effect(body: ConversationBody) -> list[ToolDefinition]:
    """Return the client's own tools that the model is shown.

    A deferred tool is shown once the conversation has referred to it or called it, or must call it. Tools that only
    Anthropic's servers and models know are left out.

    Raises:
        RequestError: a change that cannot be understood.
    """
    tools = {tool.name: tool for tool in body.tools or [] if _is_of_client(tool)}
    if len(tools) < sum(_is_of_client(tool) for tool in body.tools or []):
        message = "tools has two tools of the same name; expected each name once"
        raise InvalidParameter(message, parameter="tools")
    shown = {name for name, tool in tools.items() if not tool.defer_loading}
    for turn in body.messages:
        for block in turn.content if isinstance(turn.content, list) else []:
            if block.type == REMOVAL:
                shown.discard(_referred(block))
                continue
            definition = _definition(block)
            if definition is not None and _is_of_client(definition):
                tools[definition.name] = definition
            shown.update(_named(block))
    if body.tool_choice is not None and body.tool_choice.name:
        shown.add(body.tool_choice.name)
    return [tool for name, tool in tools.items() if name in shown]


def change_text(block: Block) -> str:
    """Return what the model reads of a tool_addition or tool_removal block."""
    definition = _definition(block)
    name = _referred(block) if definition is None else definition.name
    return f"The tool {name} can be called now." if block.type == ADDITION else f"The tool {name} is gone."


def _is_of_client(tool: ToolDefinition) -> bool:
    return tool.type in (None, "custom")


def _named(block: Block) -> Iterable[str]:
    """Yield the tools that a block refers to, calls or adds."""
    if block.type == "tool_use" and block.name:
        yield block.name
    elif block.type == "tool_reference" and block.tool_name:
        yield block.tool_name
    elif block.type == "tool_result" and isinstance(block.content, list):
        for part in block.content:
            yield from _named(part)
    elif block.type == ADDITION:
        definition = _definition(block)
        yield _referred(block) if definition is None else definition.name


def _definition(block: Block) -> ToolDefinition | None:
    """Return the tool that a tool_addition block describes itself."""
    tool = block.tool or {}
    if block.type != ADDITION or tool.get("type") != "tool_definition":
        return None
    try:
        return msgspec.convert(tool.get("definition"), ToolDefinition)
    except msgspec.ValidationError as error:
        message = f"a tool_addition block has a definition that does not have the expected shape: {error}"
        raise InvalidParameter(message, parameter="messages") from error


def _referred(block: Block) -> str:
    """Return the name of the tool that a tool_addition or tool_removal block refers to."""
    tool = block.tool or {}
    name = tool.get("name")
    if tool.get("type") != "tool_reference" or not isinstance(name, str):
        message = f"a {block.type} block has a tool of type {tool.get('type')!r}; expected a tool_reference with a name"
        raise UnsupportedParameter(message, parameter="messages")
    return name
