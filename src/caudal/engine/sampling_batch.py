"""From the rows of a plan to the arrays that a backend samples with."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from caudal.backends.base import SamplingBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.core.request import Sequence as TokenSequence
    from caudal.core.step_plan import StepPlan
    from caudal.sampling_params import SamplingParams


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


def logit_row_indices(plan: StepPlan) -> list[int]:
    """Return, for every sampling row of the plan, which row of the step's logits is its last token's."""
    indices, end = [], 0
    for row in plan.rows:
        end += row.num_logits
        if row.samples:
            indices.append(end - 1)
    return indices


def build_sampling_batch(rows: Sequence[tuple[RowSampling, TokenSequence]], logit_rows: Sequence[int]) -> SamplingBatch:
    """Make the arrays for sequences that each get a token; `logit_rows` says which logits are whose."""
    params = [sampling.params for sampling, _ in rows]
    history_starts, history_ids = _histories(rows)
    bias_starts, bias_ids, bias_values = _biases(rows)
    return SamplingBatch(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([max(p.top_k, 0) for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        typical_p=np.array([p.typical_p for p in params], np.float32),
        repetition_penalty=np.array([p.repetition_penalty for p in params], np.float32),
        presence_penalty=np.array([p.presence_penalty for p in params], np.float32),
        frequency_penalty=np.array([p.frequency_penalty for p in params], np.float32),
        seeds=np.array([sampling.seed for sampling, _ in rows], np.uint64),
        positions=np.array([len(seq.token_ids) for _, seq in rows], np.int64),
        history_starts=history_starts,
        num_prompt=np.array([seq.num_prompt_tokens for _, seq in rows], np.int32),
        history_ids=history_ids,
        bias_starts=bias_starts,
        bias_ids=bias_ids,
        bias_values=bias_values,
        num_logprobs=np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
        rows=np.array(logit_rows, np.int32),
    )


def _histories(rows: Sequence[tuple[RowSampling, TokenSequence]]) -> tuple[np.ndarray, np.ndarray]:
    """Offsets [L+1] and ids of the tokens that penalties look at; none for rows without penalties."""
    starts, ids = [0], []
    for sampling, seq in rows:
        if sampling.has_penalties:
            ids.extend(seq.token_ids)
        starts.append(len(ids))
    return np.array(starts, np.int32), np.array(ids, np.int32)


def _biases(rows: Sequence[tuple[RowSampling, TokenSequence]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets [L+1], token ids and values of the rows' logit biases."""
    starts: list[int] = [0]
    ids: list[int] = []
    values: list[float] = []
    for sampling, seq in rows:
        bias = sampling.bias(len(seq.token_ids) - seq.num_prompt_tokens)
        ids.extend(bias.keys())
        values.extend(bias.values())
        starts.append(len(ids))
    return np.array(starts, np.int32), np.array(ids, np.int32), np.array(values, np.float32)
