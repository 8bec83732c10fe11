"""What a request of OpenAI's API, or of vLLM's and llama.cpp's dialects of it, asks of the answer's form.

Source: OpenAI API reference, "response_format"; vLLM, "Structured Outputs" (`structured_outputs` and the older
`guided_*`); llama.cpp, tools/server/README.md (`grammar`, `json_schema`, and a `schema` beside "json_object").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.output_rules import OutputRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caudal.constrain.output_rule import Kind

_NOTHING = (None, "", False)


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a `response_format`, with its name, which nobody needs."""

    name: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """`response_format`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Any = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """`structured_outputs`: exactly one of the first five, and options."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    # Known, and refused unless they ask for nothing.
    disable_additional_properties: Any = None
    structural_tag: Any = None
    whitespace_pattern: Any = None


class OutputFields(msgspec.Struct, frozen=True, kw_only=True):
    """All the fields. At most one of them may ask for something."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: Any = None


def output_rule_of(fields: OutputFields) -> OutputRule | None:
    """Return what a request asks of the answer's form; None for nothing.

    Raises:
        RequestError: a field makes no sense, is not supported, or contradicts another.
    """
    rules = [*_response_format(fields.response_format), *_structured_outputs(fields.structured_outputs)]
    older: list[tuple[str, Kind]] = [
        ("guided_json", "json_schema"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("grammar", "grammar"),
        ("json_schema", "json_schema"),
    ]
    for name, kind in older:
        value = getattr(fields, name)
        if value not in _NOTHING:
            rules.append(OutputRule(kind=kind, value=value, parameter=name))
    if len(rules) > 1:
        first, second = rules[0].parameter, rules[1].parameter
        message = f"{first} and {second} both say what the answer must look like; send one of them"
        raise InvalidParameter(message, parameter=second)
    return rules[0] if rules else None


def _response_format(given: ResponseFormat | None) -> Iterator[OutputRule]:
    if given is None or given.type == "text":
        return
    if given.type == "json_object":
        kind: Kind = "json_object" if given.schema is None else "json_schema"
        yield OutputRule(kind=kind, value=given.schema)
    elif given.type == "json_schema":
        inner = given.json_schema
        schema = given.schema if inner is None else inner.schema
        if schema is None:
            message = "response_format has no schema; expected {'type': 'json_schema', 'json_schema': {'schema': ...}}"
            raise InvalidParameter(message, parameter="response_format")
        yield OutputRule(kind="json_schema", value=schema, strict=inner is not None and bool(inner.strict))
    else:
        message = f"response_format is {given.type!r}; expected 'text', 'json_object' or 'json_schema'"
        raise UnsupportedParameter(message, parameter="response_format")


def _structured_outputs(given: StructuredOutputs | None) -> Iterator[OutputRule]:
    if given is None:
        return
    for name in ("disable_additional_properties", "structural_tag", "whitespace_pattern"):
        if getattr(given, name) not in _NOTHING:
            message = f"structured_outputs has {name}, which is not supported by this server; leave it out"
            raise UnsupportedParameter(message, parameter="structured_outputs")
    kinds: list[tuple[Kind, Any]] = [
        ("json_schema", given.json),
        ("regex", given.regex),
        ("choice", given.choice),
        ("grammar", given.grammar),
        ("json_object", given.json_object or None),
    ]
    asked = [(kind, value) for kind, value in kinds if value is not None]
    if len(asked) != 1:
        message = (
            f"structured_outputs asks for {len(asked)} things; expected exactly one of json, regex, choice, grammar "
            "and json_object"
        )
        raise InvalidParameter(message, parameter="structured_outputs")
    ((kind, value),) = asked
    any_whitespace = not given.disable_any_whitespace
    yield OutputRule(kind=kind, value=value, parameter="structured_outputs", any_whitespace=any_whitespace)
