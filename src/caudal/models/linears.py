"""From a checkpoint's tensors to projections on a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.backends.base import Array, Backend
    from caudal.checkpoint.tensor import Tensor
    from caudal.checkpoint.weights import Weights


def take_linear(weights: Weights, name: str, out_size: int, in_size: int) -> tuple[Tensor, Tensor | None]:
    """Take a projection's matrix and, if there is one, its bias."""
    return weights.take(f"{name}.weight", (out_size, in_size)), weights.take_optional(f"{name}.bias", (out_size,))


def take_fused(
    weights: Weights, name: str, out_sizes: Sequence[int], in_size: int
) -> list[tuple[Tensor, Tensor | None]]:
    """Take projections that are stored as the rows of one matrix, one after another."""
    matrix, bias = take_linear(weights, name, sum(out_sizes), in_size)
    parts: list[tuple[Tensor, Tensor | None]] = []
    start = 0
    for size in out_sizes:
        stop = start + size
        parts.append((matrix.rows(start, stop), None if bias is None else bias.elements(start, stop)))
        start = stop
    return parts


def place(parts: Sequence[tuple[Tensor, Tensor | None]], ops: Backend) -> Array:
    """Place projections of one input on the backend, as a group."""
    return ops.linear_group(
        [(ops.matrix(matrix), None if bias is None else ops.vector(bias)) for matrix, bias in parts]
    )


def optional_vector(weights: Weights, name: str, size: int, ops: Backend) -> Array | None:
    """Place a vector that need not be there."""
    tensor = weights.take_optional(name, (size,))
    return None if tensor is None else ops.vector(tensor)
