"""Log-probabilities of prompt tokens, gathered while the prompt is computed in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caudal.messages import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class PromptLogprobs:
    """Collects one request's; the first prompt token has none.

    Args:
        num_top: how many alternatives to report at each position.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._entries: list[TokenLogprobs | None] = [None]

    def add(self, first: int, logits: NDArray[np.float32], next_token_ids: Sequence[int]) -> None:
        """Score prompt tokens: row i of `logits` [n, V] is of position first + i and predicts next_token_ids[i].

        Positions may come again, in a step that is computed anew.
        """
        del self._entries[first + 1 :]
        for row, token_id in zip(logits, next_token_ids, strict=True):
            self._entries.append(token_logprobs(row, token_id, self._num_top))

    def take(self) -> list[TokenLogprobs | None]:
        """Return one entry per prompt token, when the prompt is done."""
        return self._entries


def token_logprobs(logits: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    """Log-softmax of one row in float64, of the token and of the likeliest; ties go to the lower id."""
    row = logits.astype(np.float64)
    log_total = row.max() + np.log(np.exp(row - row.max()).sum())
    count = min(num_top, len(row))
    threshold = np.partition(row, len(row) - count)[len(row) - count] if count else np.inf
    near = np.flatnonzero(row >= threshold)
    top = near[np.lexsort((near, -row[near]))][:count]
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(row[token_id] - log_total),
        rank=int((row > row[token_id]).sum()) + 1,
        top_ids=top.tolist(),
        top_logprobs=(row[top] - log_total).tolist(),
    )
