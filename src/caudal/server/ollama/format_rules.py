"""`format`: what an answer must look like. The one place where it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter
from caudal.server.output_rules import OutputRule, grammar_for

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.conversation import ChatPrompt
    from caudal.server.loaded_model import LoadedModel


async def grammar_of(output_format: Any, model: LoadedModel, prompt: ChatPrompt | None, call: Call) -> str:
    """Return the grammar of an answer, see AddRequest; "" for anything.

    Args:
        output_format: "json", a JSON schema, or nothing.
        model: who answers.
        prompt: of a chat, whose tools may have to be called.
        call: the request.

    Raises:
        RequestError: it is something else, or a schema that cannot be honoured.
    """
    return await grammar_for(_rule(output_format), model, prompt, call=call)


def _rule(output_format: Any) -> OutputRule | None:
    if output_format in (None, "", {}):
        return None
    if output_format == "json":
        return OutputRule(kind="json_object", parameter="format")
    if isinstance(output_format, dict):
        return OutputRule(kind="json_schema", value=output_format, parameter="format")
    message = f"format is {str(output_format)[:40]!r}; expected 'json' or a JSON schema"
    raise InvalidParameter(message, parameter="format")
