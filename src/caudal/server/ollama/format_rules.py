"""`format`: what an answer must look like. The one place where it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.errors import UnsupportedParameter

if TYPE_CHECKING:
    from caudal.server.conversation import ChatPrompt
    from caudal.server.loaded_model import LoadedModel


async def grammar_of(output_format: Any, model: LoadedModel, prompt: ChatPrompt | None) -> str:  # noqa: ARG001
    """Return the grammar of an answer, see AddRequest; "" for anything.

    Args:
        output_format: "json", a JSON schema, or nothing.
        model: who answers.
        prompt: of a chat.

    Raises:
        RequestError: it is something else, or a schema that cannot be honoured.
    """
    if output_format in (None, "", {}):
        return ""
    message = "format is not supported by this server; leave it out"
    raise UnsupportedParameter(message, parameter="format")
