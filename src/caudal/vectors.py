"""Embeddings as plain lists of numbers."""

from __future__ import annotations

import math


def normalized(vector: list[float]) -> list[float]:
    """Return a vector of length 1 in the same direction; the zero vector stays."""
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector] if length > 0 else vector
