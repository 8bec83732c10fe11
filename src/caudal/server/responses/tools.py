"""The tools of a Responses request, as Conversation has them and as the answer names them.

Functions inside a namespace are shown to the model beside all others: under their own names where those are unique,
else with the namespace before them. A custom tool is a function with one argument, `input`, a text. Tools that run at
OpenAI's (web search, code interpreter, ...) are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.conversation import ToolChoice
from caudal.server.openai.chat_fields import MAX_TOOLS, checked_choice, tool_of
from caudal.server.openai.chat_protocol import ToolFunction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MODES = ("auto", "none", "required")
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class GivenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of any type; which fields it has depends on `type`."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[GivenTool] | None = None
    format: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool's name and namespace in the API, and whether it is a custom tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


class ToolNames:
    """Names in the API and names for the model.

    Args:
        tools: by their names for the model.
    """

    def __init__(self, tools: dict[str, NamedTool]) -> None:
        self._tools = tools
        self._flat = {(tool.namespace, tool.name): flat for flat, tool in tools.items()}

    def flat(self, namespace: str | None, name: str) -> str:
        """Return the model's name of a tool; the name itself for one that is not among the tools any more."""
        return self._flat.get((namespace, name), name)

    def tool(self, flat: str) -> NamedTool:
        """Return what the API calls a tool that the model has called."""
        return self._tools.get(flat) or NamedTool(flat)


@dataclass(frozen=True, slots=True)
class Tools:
    """A request's tools.

    Attributes:
        functions: as Conversation has them.
        names: of all of them.
        shown: as the response repeats them.
    """

    functions: tuple[dict[str, Any], ...]
    names: ToolNames
    shown: list[dict[str, Any]]


def tools_of(raw: Sequence[dict[str, Any]]) -> Tools:
    """Return a request's tools.

    Raises:
        RequestError: a tool that makes no sense, or too many.
    """
    try:
        given = msgspec.convert(list(raw), list[GivenTool])
    except msgspec.ValidationError as error:
        message = f"tools does not have the expected shape: {error}"
        raise InvalidParameter(message, parameter="tools") from error
    found = [(tool, namespace) for tool, namespace in _flattened(given, None) if tool.type in ("function", "custom")]
    if len(found) > MAX_TOOLS:
        message = f"tools has {len(found)} tools; expected at most {MAX_TOOLS}"
        raise InvalidParameter(message, parameter="tools")
    counts = Counter(tool.name for tool, _ in found)
    named: dict[str, NamedTool] = {}
    functions: list[dict[str, Any]] = []
    for tool, namespace in found:
        flat = f"{namespace}__{tool.name}" if namespace and counts[tool.name] > 1 else tool.name
        named[flat] = NamedTool(tool.name, namespace, is_custom=tool.type == "custom")
        functions.append(_function(tool, flat))
    known = ("function", "custom", "namespace")
    shown = [_shown(each, tool) for each, tool in zip(raw, given, strict=True) if tool.type in known]
    return Tools(tuple(functions), ToolNames(named), shown)


def _flattened(given: Iterable[GivenTool], namespace: str | None) -> Iterable[tuple[GivenTool, str | None]]:
    for tool in given:
        if tool.type == "namespace" and namespace is None:
            yield from _flattened(tool.tools or [], tool.name)
        else:
            yield tool, namespace


def _function(tool: GivenTool, flat: str) -> dict[str, Any]:
    if tool.type == "function":
        function = ToolFunction(name=flat, description=tool.description, parameters=tool.parameters, strict=tool.strict)
        return tool_of(function)
    return tool_of(ToolFunction(name=flat, description=_custom_description(tool), parameters=_CUSTOM_PARAMETERS))


def _custom_description(tool: GivenTool) -> str | None:
    """Return what the model reads of a custom tool; a grammar for its input is told, and not enforced."""
    wanted = tool.format or {}
    kind = wanted.get("type", "text")
    if kind == "text":
        return tool.description
    if kind != "grammar" or not isinstance(wanted.get("definition"), str):
        message = f"the custom tool {tool.name!r} has a format of type {kind!r}; expected 'text' or a 'grammar'"
        raise InvalidParameter(message, parameter="tools")
    rule = f"The input must follow this grammar ({wanted.get('syntax')}):\n{wanted['definition']}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def _shown(raw: dict[str, Any], tool: GivenTool) -> dict[str, Any]:
    if tool.type != "function":
        return dict(raw)
    return {"description": None, "parameters": None, "strict": None, **raw}


def chosen(given: str | dict[str, Any] | None, tools: Tools) -> tuple[ToolChoice, tuple[dict[str, Any], ...]]:
    """Return which tools may be called, and those that are shown to the model.

    Raises:
        RequestError: a choice that is not known, is not supported, or names no tool.
    """
    if given is None or isinstance(given, str):
        if given not in (None, *_MODES):
            message = f"tool_choice is {given!r}; expected 'auto', 'none', 'required' or an object"
            raise InvalidParameter(message, parameter="tool_choice")
        return checked_choice(ToolChoice(mode=given or "auto"), tools.functions, "tool_choice"), tools.functions
    kind = given.get("type")
    if kind in ("function", "custom"):
        choice = ToolChoice(mode="required", name=_name_in(given, tools))
        return checked_choice(choice, tools.functions, "tool_choice"), tools.functions
    if kind == "allowed_tools":
        return _allowed(given, tools)
    message = f"tool_choice is of type {kind!r}; expected 'function', 'custom' or 'allowed_tools'"
    raise UnsupportedParameter(message, parameter="tool_choice")


def _allowed(given: dict[str, Any], tools: Tools) -> tuple[ToolChoice, tuple[dict[str, Any], ...]]:
    listed = given.get("tools")
    if given.get("mode") not in _MODES or not isinstance(listed, list):
        message = "tool_choice of type 'allowed_tools' needs mode, 'auto' or 'required', and a list of tools"
        raise InvalidParameter(message, parameter="tool_choice")
    allowed = {_name_in(each, tools) for each in listed if isinstance(each, dict)}
    functions = tuple(tool for tool in tools.functions if tool["name"] in allowed)
    return checked_choice(ToolChoice(mode=given["mode"]), functions, "tool_choice"), functions


def _name_in(given: dict[str, Any], tools: Tools) -> str:
    """Return the model's name of the tool that an object names, also in the nested form of chat completions."""
    function = given.get("function")
    name = given.get("name") or (function.get("name") if isinstance(function, dict) else None)
    namespace = given.get("namespace")
    if not isinstance(name, str):
        message = "tool_choice is an object without a name; expected {'type': 'function', 'name': ...}"
        raise InvalidParameter(message, parameter="tool_choice")
    return tools.names.flat(namespace if isinstance(namespace, str) else None, name)
