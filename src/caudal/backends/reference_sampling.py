"""Sampling, defined to the bit: the specification that every backend's sampler follows.

Each row is on its own. Logits and parameters are float32; f64 is said where it is meant. No fused multiply-add.
Every choice between equals goes to the lower token id.

1. Penalties, in float32. For each distinct token of the row's history (prompt and answer): logit > 0 is divided by
   repetition_penalty, else multiplied by it. Then, for each distinct token of the answer, seen `count` times there:
   logit = (logit - frequency_penalty * count) - presence_penalty.
2. Bias, in float32: bias values are added to their logits in the order given. -inf bans a token; NaN reads as -inf.
   Then the mask: it bans every token whose bit is not set.
3. No finite largest logit (all banned, or an infinity): no token, id -1, and nothing reported. Else temperature == 0
   takes the largest logit.
4. Else candidates are all tokens ordered by logit descending, then id ascending, and in f64, top = first logit:
   x = (logit - top) / temperature; w = exp(x). A banned token has w = 0. All sums below run in f64, one after
   another in candidate order; `total` is the sum over the candidates that are left at that moment.
5. top_k > 0: keep the first k.
6. top_p < 1: keep candidates as long as the sum before them is < top_p * total; the first always stays.
7. min_p > 0: keep candidates with w >= min_p (w of the first is 1).
8. typical_p < 1: p = w / total, surprise = log(total) - x, entropy = sum of p * surprise over candidates with w > 0.
   Order candidates by |surprise - entropy| ascending (stable), keep them as long as the sum of w before them is
   < typical_p * total, the first always, and put the kept ones back in candidate order.
9. Draw. u from (seed, position), see `uniform`; take the first candidate at which the running sum of w exceeds
   u * total; the last one with w > 0 if rounding leaves none.

Log-probabilities are of the raw logits, in f64: (logit - max) - log(sum of exp(logit - max)), rounded to float32.
A token's rank is 1 + the number of strictly greater raw logits. Alternatives are ordered by raw logit descending,
then id ascending; places beyond a row's num_logprobs hold id -1 and -inf.

Sources: repetition penalty: CTRL (arXiv:1909.05858). Frequency and presence: OpenAI API reference. top_p:
arXiv:1904.09751. typical_p: arXiv:2202.00666. min_p: arXiv:2407.01082. Generator: SplitMix64, Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caudal.backends.base import SampleOutput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from caudal.backends.base import SamplingBatch

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
    Ids = NDArray[np.int64]

NO_TOKEN = -1
_MASK = 2**64 - 1


def uniform(seed: int, position: int) -> float:
    """Return the random number of `position`, in [0, 1), a multiple of 2^-24.

    x = seed + 0x9E3779B97F4A7C15 * (position + 1) mod 2^64; z = mix(mix(x)); u = (z >> 40) * 2^-24, where mix is the
    finaliser of SplitMix64.
    """
    state = (seed + 0x9E3779B97F4A7C15 * (position + 1)) & _MASK
    return (_mix(_mix(state)) >> 40) * 2.0**-24


def _mix(z: int) -> int:
    """Finalise SplitMix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample_rows(logits: F32, sampling: SamplingBatch) -> SampleOutput:
    """Choose a token for every row of `sampling`; row l reads logits[sampling.rows[l]]."""
    num_rows = len(sampling.rows)
    width = max(0, int(sampling.num_logprobs.max(initial=0)))
    output = SampleOutput(
        token_ids=np.zeros(num_rows, np.int32),
        logprobs=np.zeros(num_rows, np.float32),
        ranks=np.zeros(num_rows, np.int32),
        top_ids=np.full((num_rows, width), -1, np.int32),
        top_logprobs=np.full((num_rows, width), -np.inf, np.float32),
    )
    for row in range(num_rows):
        raw = logits[sampling.rows[row]]
        token_id = _choose(_adjust(raw, sampling, row), sampling, row)
        output.token_ids[row] = token_id
        if sampling.num_logprobs[row] >= 0 and token_id != NO_TOKEN:
            _report(raw, token_id, int(sampling.num_logprobs[row]), output, row)
    return output


def _adjust(raw: F32, sampling: SamplingBatch, row: int) -> F32:
    """Apply penalties, bias and mask (steps 1 and 2) to a copy."""
    logits = raw.copy()
    start, stop = sampling.history_starts[row : row + 2]
    history = sampling.history_ids[start:stop]
    if len(history):
        seen = np.unique(history)
        factor = sampling.repetition_penalty[row]
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
        answered, counts = np.unique(history[sampling.num_prompt[row] :], return_counts=True)
        logits[answered] -= sampling.frequency_penalty[row] * counts.astype(np.float32)
        logits[answered] -= sampling.presence_penalty[row]
    start, stop = sampling.bias_starts[row : row + 2]
    np.add.at(logits, sampling.bias_ids[start:stop], sampling.bias_values[start:stop])
    logits[np.isnan(logits)] = -np.inf
    if sampling.masks is not None and sampling.mask_rows is not None and sampling.mask_rows[row] >= 0:
        words = sampling.masks[sampling.mask_rows[row]]
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little", count=len(logits))
        logits[bits == 0] = -np.inf
    return logits


def _choose(logits: F32, sampling: SamplingBatch, row: int) -> int:
    """Choose one token from adjusted logits (steps 3 to 9)."""
    best = int(np.argmax(logits))
    if not np.isfinite(logits[best]):
        return NO_TOKEN
    if sampling.temperature[row] == 0:
        return best
    ids = np.argsort(-logits, kind="stable")
    ordered = logits[ids].astype(np.float64)
    x = (ordered - ordered[0]) / np.float64(sampling.temperature[row])
    if sampling.top_k[row] > 0:
        x = x[: sampling.top_k[row]]
    if sampling.top_p[row] < 1:
        x = x[: _prefix_reaching(np.exp(x), float(sampling.top_p[row]))]
    if sampling.min_p[row] > 0:
        x = x[: np.count_nonzero(np.exp(x) >= np.float64(sampling.min_p[row]))]
    kept = np.arange(len(x))
    if sampling.typical_p[row] < 1:
        kept = _typical(x, float(sampling.typical_p[row]))
    sums = np.cumsum(np.exp(x[kept]))
    u = uniform(int(sampling.seeds[row]), int(sampling.positions[row]))
    index = int(np.searchsorted(sums, u * sums[-1], side="right"))
    last = int(np.searchsorted(sums, sums[-1], side="left"))
    return int(ids[kept[min(index, last)]])


def _prefix_reaching(weights: F64, mass: float) -> int:
    """Length of the shortest prefix that holds `mass` of the weights' sum, at least 1."""
    sums = np.cumsum(weights)
    before = sums[:-1]
    return 1 + int(np.count_nonzero(before < mass * sums[-1]))


def _typical(x: F64, mass: float) -> Ids:
    """Indices that locally typical sampling keeps (step 8), ascending."""
    weights = np.exp(x)
    total = np.cumsum(weights)[-1]
    surprise = np.log(total) - x
    likely = weights > 0
    entropy = np.cumsum(weights[likely] / total * surprise[likely])[-1]
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    kept: Ids = np.sort(order[: _prefix_reaching(weights[order], mass)])
    return kept


def _report(raw: F32, token_id: int, num_logprobs: int, output: SampleOutput, row: int) -> None:
    """Write a row's log-probability, rank and alternatives."""
    exact = raw.astype(np.float64)
    shifted = exact - exact.max()
    logprobs = (shifted - np.log(np.cumsum(np.exp(shifted))[-1])).astype(np.float32)
    output.logprobs[row] = logprobs[token_id]
    output.ranks[row] = 1 + np.count_nonzero(raw > raw[token_id])
    top = np.argsort(-raw, kind="stable")[:num_logprobs]
    output.top_ids[row, : len(top)] = top
    output.top_logprobs[row, : len(top)] = logprobs[top]
