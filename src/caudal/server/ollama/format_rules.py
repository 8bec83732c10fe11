"""`format`: what an answer must look like. The one place where it is read."""

from __future__ import annotations

from typing import Any

from caudal.errors import UnsupportedParameter


def grammar_of(output_format: Any) -> str:
    """Return the grammar of `format`, see AddRequest; "" for anything.

    Args:
        output_format: "json", a JSON schema, or nothing.

    Raises:
        RequestError: it is something else, or a schema that cannot be honoured.
    """
    if output_format in (None, "", {}):
        return ""
    message = "format is not supported by this server; leave it out"
    raise UnsupportedParameter(message, parameter="format")
