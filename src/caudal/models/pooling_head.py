"""What stands behind the layers of a model that reads: from the rows of whole texts to a vector or scores for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.models.linears import place, take_linear
from caudal.models.score_head import ScoreHead, take_score_head

if TYPE_CHECKING:
    from caudal.backends.base import Array, Backend
    from caudal.checkpoint.weights import Weights
    from caudal.models.encoder_spec import Pooling

# Numbered as among sentence-transformers' modules, where 0 is the transformer and 1 its pooling.
_DENSE = ("dense_2", "dense_3")


class PoolingHead:
    """One row for every text, then the projections or the head of a reranker that the checkpoint holds.

    Args:
        pooling: which row stands for a text.
        dense: projections, one after the other.
        score: head of a reranker or classifier.
        ops: where they lie.
    """

    def __init__(self, pooling: Pooling, dense: tuple[Array, ...], score: ScoreHead | None, ops: Backend) -> None:
        self._pooling = pooling
        self._dense = dense
        self._score = score
        self._ops = ops

    @property
    def scores(self) -> bool:
        """Whether it gives scores: the model is a reranker or a classifier."""
        return self._score is not None

    def __call__(self, x_TD: Array, batch: Any) -> Array:
        """Return vectors [R, n], or scores [R, labels]."""
        ops = self._ops
        x_RD = ops.sequence_means(x_TD, batch) if self._pooling == "mean" else ops.logit_rows(x_TD, batch)
        for projection in self._dense:
            (x_RD,) = ops.linear(projection, x_RD)
        return x_RD if self._score is None else self._score(x_RD)


def take_pooling_head(weights: Weights, width: int, pooling: Pooling, ops: Backend) -> PoolingHead:
    """Take what there is of projections and a head for scores.

    Args:
        weights: cursor at the root of the tensors.
        width: of the hidden rows.
        pooling: which row stands for a text.
        ops: where they go.

    Raises:
        CheckpointError: a projection does not fit what comes before it.
    """
    score = take_score_head(weights, width, ops)
    dense = []
    for name in _DENSE:
        if score is None and weights.has(f"{name}.weight"):
            size = weights.take(f"{name}.weight").shape[0]
            dense.append(place([take_linear(weights, name, size, width)], ops))
            width = size
    return PoolingHead(pooling, tuple(dense), score, ops)
