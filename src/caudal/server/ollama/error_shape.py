"""Errors as Ollama's API writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from caudal.server.problems import Problem


def ollama_shape(problem: Problem) -> bytes:
    """Return {"error": sentence}. In a stream it is a line of its own."""
    return msgspec.json.encode({"error": problem.message})
