"""From the rows of a plan to the arrays that a backend samples with."""

from __future__ import annotations

import operator
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from caudal.backends.base import SamplingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from caudal.core.request import Sequence as TokenSequence
    from caudal.core.step_plan import PlanColumns, StepPlan
    from caudal.sampling_params import SamplingParams

    # How to choose a token, its sequence, what is assumed between the known tokens and this one, the row of its logits.
    SampledToken = tuple["RowSampling", TokenSequence, tuple[int, ...], int]

_FLOATS = (
    *("temperature", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one request samples: its parameters, with the seed settled and stop tokens known."""

    params: SamplingParams
    seed: int
    stop_token_ids: tuple[int, ...]

    @classmethod
    def of(cls, params: SamplingParams, stop_token_ids: tuple[int, ...]) -> RowSampling:
        """Settle the seed: the request's own, or a fresh one."""
        seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        return cls(params, seed, stop_token_ids)

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        p = self.params
        return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0

    def bias(self, num_generated: int) -> dict[int, float]:
        """Return the logit bias of the next token; stop tokens are banned until min_tokens are there."""
        if num_generated >= self.params.min_tokens:
            return self.params.logit_bias
        return {**self.params.logit_bias, **dict.fromkeys(self.stop_token_ids, -np.inf)}


def sampled_tokens(
    plan: StepPlan, sequences: Sequence[TokenSequence], sampling_of: Callable[[TokenSequence], RowSampling]
) -> list[SampledToken]:
    """Return the tokens to choose: behind every sampling row of the plan, and behind each token of its draft.

    Args:
        plan: what the step computes.
        sequences: of its rows.
        sampling_of: says how a sequence samples.
    """
    tokens: list[SampledToken] = []
    end = 0
    for row, seq in zip(plan.rows, sequences, strict=True):
        end += row.num_logits
        if row.samples:
            sampling = sampling_of(seq)
            draft = row.draft
            if draft:
                first = end - 1 - len(draft)
                tokens += [(sampling, seq, draft[:count], first + count) for count in range(len(draft))]
            tokens.append((sampling, seq, draft, end - 1))
    return tokens


class SamplingArrays:
    """Makes SamplingBatches. Most of one depends on which requests sample alone, and is kept while they do.

    A batch is valid until the next one is made.

    Args:
        sampling_of: says how a sequence samples.
    """

    def __init__(self, sampling_of: Callable[[TokenSequence], RowSampling]) -> None:
        self._sampling_of = sampling_of
        self._decoding: Sequence[TokenSequence] = ()  # those of the last batch, if none of it but positions may change
        self._decoding_batch: SamplingBatch | None = None
        self._samplings: list[RowSampling] = []
        self._kept: dict[str, np.ndarray] = {}
        self._has_penalties = False
        self._has_bias = False
        self._rows: list[int] = []
        self._row_array = np.zeros(0, np.int32)

    def batch(
        self, plan: StepPlan, columns: PlanColumns, sequences: Sequence[TokenSequence], context_lens: NDArray[np.int32]
    ) -> SamplingBatch | None:
        """Return the arrays for the tokens that a plan samples; None if there are none.

        Args:
            plan: what the step computes.
            columns: the plan's.
            sequences: of its rows.
            context_lens: [R], as in the StepBatch of the plan.
        """
        is_decode = columns.is_decode
        if is_decode and self._decoding_batch is not None and sequences == self._decoding:
            np.copyto(self._decoding_batch.positions, context_lens)
            return self._decoding_batch
        rows = sampled_tokens(plan, sequences, self._sampling_of)
        if not rows:
            return None
        batch = self._batch(rows)
        self._decoding_batch = batch if is_decode and not (self._has_penalties or self._has_bias) else None
        self._decoding = sequences
        return batch

    def _batch(self, rows: Sequence[SampledToken]) -> SamplingBatch:
        samplings = [row[0] for row in rows]
        if len(samplings) != len(self._samplings) or not all(map(operator.is_, samplings, self._samplings)):
            self._keep(rows)
        logit_rows = [row[3] for row in rows]
        if logit_rows != self._rows:
            self._rows, self._row_array = logit_rows, np.array(logit_rows, np.int32)
        changing = _histories(rows) if self._has_penalties else {}
        if self._has_bias:
            changing |= _biases(rows)
        positions = [len(seq.token_ids) + len(assumed) for _, seq, assumed, _ in rows]
        return SamplingBatch(
            **{**self._kept, **changing}, positions=np.array(positions, np.int64), rows=self._row_array
        )

    def _keep(self, rows: Sequence[SampledToken]) -> None:
        """Make what is the same in every step of these requests."""
        self._samplings = [row[0] for row in rows]
        params = [sampling.params for sampling in self._samplings]
        self._has_penalties = any(sampling.has_penalties for sampling in self._samplings)
        self._has_bias = any(p.logit_bias or p.min_tokens for p in params)
        self._kept = {name: np.array([getattr(p, name) for p in params], np.float32) for name in _FLOATS}
        self._kept |= _nothing(len(rows)) | {
            "top_k": np.array([max(p.top_k, 0) for p in params], np.int32),
            "seeds": np.array([sampling.seed for sampling in self._samplings], np.uint64),
            "num_prompt": np.array([seq.num_prompt_tokens for _, seq, _, _ in rows], np.int32),
            "num_logprobs": np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
        }


def _nothing(num_rows: int) -> dict[str, np.ndarray]:
    """Return the histories and biases of rows that have none."""
    starts = np.zeros(num_rows + 1, np.int32)
    ids = np.zeros(0, np.int32)
    values = np.zeros(0, np.float32)
    return {
        "history_starts": starts,
        "history_ids": ids,
        "bias_starts": starts,
        "bias_ids": ids,
        "bias_values": values,
    }


def _histories(rows: Sequence[SampledToken]) -> dict[str, np.ndarray]:
    """Offsets [L+1] and ids of the tokens that penalties look at; none for rows without penalties."""
    starts, ids = [0], []
    for sampling, seq, assumed, _ in rows:
        if sampling.has_penalties:
            ids.extend(seq.token_ids)
            ids.extend(assumed)
        starts.append(len(ids))
    return {"history_starts": np.array(starts, np.int32), "history_ids": np.array(ids, np.int32)}


def _biases(rows: Sequence[SampledToken]) -> dict[str, np.ndarray]:
    """Offsets [L+1], token ids and values of the rows' logit biases."""
    starts: list[int] = [0]
    ids: list[int] = []
    values: list[float] = []
    for sampling, seq, assumed, _ in rows:
        bias = sampling.bias(len(seq.token_ids) + len(assumed) - seq.num_prompt_tokens)
        ids.extend(bias.keys())
        values.extend(bias.values())
        starts.append(len(ids))
    return {
        "bias_starts": np.array(starts, np.int32),
        "bias_ids": np.array(ids, np.int32),
        "bias_values": np.array(values, np.float32),
    }
