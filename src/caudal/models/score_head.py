"""The head of a reranker or classifier: from a text's row to scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.models.linears import place, take_linear

if TYPE_CHECKING:
    from caudal.backends.base import Array, Backend
    from caudal.checkpoint.weights import Weights


class ScoreHead:
    """tanh(x @ dense + b) @ out + c; the dense part may be missing."""

    def __init__(self, dense: Array | None, out: Array, ops: Backend) -> None:
        self._dense = dense
        self._out = out
        self._ops = ops

    def __call__(self, x_LD: Array) -> Array:
        """Return scores [L, labels]."""
        if self._dense is not None:
            (x_LD,) = self._ops.linear(self._dense, x_LD)
            x_LD = self._ops.softcap(x_LD, 1.0)  # which is tanh
        (scores,) = self._ops.linear(self._out, x_LD)
        return scores


def take_score_head(weights: Weights, width: int, ops: Backend) -> ScoreHead | None:
    """Take the tensors `cls` and `cls.output`; None if there are none."""
    if not weights.has("cls.output.weight"):
        if not weights.has("cls.weight"):
            return None
        # A single matrix to the labels, or a dense part that stands alone: then it is the label's.
        num_labels = weights.take("cls.weight").shape[0]
        return ScoreHead(None, place([take_linear(weights, "cls", num_labels, width)], ops), ops)
    dense = place([take_linear(weights, "cls", width, width)], ops) if weights.has("cls.weight") else None
    num_labels = weights.take("cls.output.weight").shape[0]
    return ScoreHead(dense, place([take_linear(weights, "cls.output", num_labels, width)], ops), ops)
