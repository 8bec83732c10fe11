"""Raw text as a value of the type that a tool's schema asks for, and the schemas of an object's members."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from caudal.tools.call_object import literal_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_REFERENCES = 8
_STARTS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


def is_string(schema: Mapping[str, Any] | None, root: Mapping[str, Any]) -> bool:
    """Whether a schema asks for a string and nothing else."""
    return types_of(schema, root) == {"string"}


def json_of(raw: str, schema: Mapping[str, Any] | None, root: Mapping[str, Any]) -> str:
    """Return the JSON of a raw value.

    A string stays one where the schema asks for a string. Anything else is JSON, or a Python literal, where it is
    one of a type that the schema takes; otherwise it is a string after all.

    Args:
        raw: the text.
        schema: of the value; None if the tool has no such parameter.
        root: the schema that `$ref` refers to.
    """
    types = types_of(schema, root)
    if types != {"string"}:
        value = literal_text(raw.strip())
        if value is not None and (not types or _type_of(value) in types):
            return value
    return json.dumps(raw, ensure_ascii=False)


def types_of(schema: Mapping[str, Any] | None, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the types that a schema takes, as far as it says; none if it does not."""
    schema = resolved(schema, root)
    if not schema or depth > _MAX_REFERENCES:
        return set()
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, list):
        types = {name for name in declared if isinstance(name, str)}
        return types | {"integer", "number"} if types & {"integer", "number"} else types
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return {_type_of(json.dumps(value)) for value in values}
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if isinstance(choices, list):
            each = [types_of(choice if isinstance(choice, dict) else None, root, depth + 1) for choice in choices]
            return set().union(*each) if all(each) else set()
    return set()


def resolved(schema: Mapping[str, Any] | None, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a schema refers to inside of `root`; the schema itself if it does not, None if there is no such."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(reference := schema.get("$ref"), str):
            break
        target: Any = root
        for step in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        schema = target
    return schema if isinstance(schema, dict) else None


def properties_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """Return the schemas of an object's members; None for one that is no schema to us."""
    properties = (resolved(schema, schema) or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {key: value if isinstance(value, dict) else None for key, value in properties.items()}


def members_of(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any], bool]]:
    """Return an object's members: key, schema with all that it may refer to, and whether it must be there."""
    root = resolved(schema, schema) or {}
    required = root.get("required")
    required = required if isinstance(required, list) else []
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [(key, {**definitions, **(value or {})}, key in required) for key, value in properties_of(schema).items()]


def _type_of(text: str) -> str:
    """Return the type of a JSON value."""
    return _STARTS.get(text[:1]) or ("number" if set(text) & set(".eE") else "integer")
