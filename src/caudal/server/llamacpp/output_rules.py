"""`grammar` and `json_schema`: what an answer must look like. The one place where they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import UnsupportedParameter

if TYPE_CHECKING:
    from caudal.server.llamacpp.protocol import NativeRequest
    from caudal.server.loaded_model import LoadedModel


async def grammar_of(fields: NativeRequest, model: LoadedModel) -> str:  # noqa: ARG001
    """Return the grammar of an answer, see AddRequest; "" for anything.

    Raises:
        RequestError: a field that is not supported, or makes no sense.
    """
    for name in ("grammar", "grammar_lazy", "json_schema"):
        value = getattr(fields, name)
        if value not in (None, False, ""):
            message = f"{name} is {str(value)[:40]}, and it is not supported; leave it out"
            raise UnsupportedParameter(message, parameter=name)
    return ""
