"""Errors as llama-server writes them.

Source: llama.cpp, tools/server/README.md, "API errors".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from caudal.server.problems import Problem

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def llamacpp_shape(problem: Problem) -> bytes:
    """Return {"error": {"code", "message", "type"}}; of a prompt that does not fit, with the two lengths."""
    kind = _TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error: dict[str, Any] = {"code": problem.status, "message": problem.message, "type": kind}
    if problem.code == "context_length_exceeded":
        error["type"] = "exceed_context_size_error"
        if problem.num_prompt_tokens is not None and problem.max_model_len is not None:
            error["message"] = (
                f"the request has {problem.num_prompt_tokens} tokens, which exceeds the available context size of "
                f"{problem.max_model_len} tokens; shorten it, or start the server with a larger --max-model-len"
            )
            error["n_prompt_tokens"] = problem.num_prompt_tokens
            error["n_ctx"] = problem.max_model_len
    return msgspec.json.encode({"error": error})
