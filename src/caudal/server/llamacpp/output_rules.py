"""`grammar` and `json_schema`: what an answer must look like. The one place where they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.output_rules import OutputRule, grammar_for

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.llamacpp.protocol import NativeRequest
    from caudal.server.loaded_model import LoadedModel


async def grammar_of(fields: NativeRequest, model: LoadedModel, call: Call) -> str:
    """Return the grammar of an answer, see AddRequest; "" for anything.

    Raises:
        RequestError: a field that is not supported, or makes no sense.
    """
    return await grammar_for(_rule(fields), model, call=call)


def _rule(fields: NativeRequest) -> OutputRule | None:
    if fields.grammar_lazy:
        message = "grammar_lazy is not supported by this server; leave it out, and the grammar counts from the start"
        raise UnsupportedParameter(message, parameter="grammar_lazy")
    schema = None if fields.json_schema == "" else fields.json_schema
    if fields.grammar and schema is not None:
        message = "grammar and json_schema exclude each other; send one of them"
        raise InvalidParameter(message, parameter="grammar")
    if fields.grammar:
        return OutputRule(kind="grammar", value=fields.grammar, parameter="grammar")
    return None if schema is None else OutputRule(kind="json_schema", value=schema, parameter="json_schema")
