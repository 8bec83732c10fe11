"""A step whose rows are computed one after the other, because all together they could not be.

A row gives the same bits alone as in any batch, and what it writes to the KV cache it may write again. So a step that
failed is tried again row by row, and only the requests of rows that fail on their own end with an error.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from caudal.backends.base import SampleOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from caudal.core.step_plan import PlannedRow, StepPlan

logger = logging.getLogger(__name__)
_NO_TOKEN = -1


def compute_row_by_row(
    plan: StepPlan,
    compute: Callable[[StepPlan], SampleOutput | None],
    note_failure: Callable[[PlannedRow, Exception], None],
) -> SampleOutput | None:
    """Compute every row of a plan as a step of its own, and return what the whole plan would have given.

    Args:
        plan: the step that failed.
        compute: computes a plan and samples; its output may be overwritten by the next call.
        note_failure: is told each row that fails alone, and why. Its place in the output holds -1.
    """
    outputs: list[SampleOutput] = []
    for row in plan.rows:
        try:
            output = compute(replace(plan, rows=(row,)))
        except Exception as error:
            logger.exception("a request's part of a step failed alone")
            note_failure(row, error)
            output = _nothing(1 + len(row.draft)) if row.samples else None
        if output is not None:
            outputs.append(SampleOutput(*(getattr(output, name.name).copy() for name in fields(output))))
    return _joined(outputs) if outputs else None


def _nothing(num_rows: int) -> SampleOutput:
    """Rows that no token was chosen for."""
    return SampleOutput(
        token_ids=np.full(num_rows, _NO_TOKEN, np.int32),
        logprobs=np.zeros(num_rows, np.float32),
        ranks=np.zeros(num_rows, np.int32),
        top_ids=np.zeros((num_rows, 0), np.int32),
        top_logprobs=np.zeros((num_rows, 0), np.float32),
    )


def _joined(outputs: list[SampleOutput]) -> SampleOutput:
    num_top = max(output.top_ids.shape[1] for output in outputs)
    return SampleOutput(
        token_ids=np.concatenate([output.token_ids for output in outputs]),
        logprobs=np.concatenate([output.logprobs for output in outputs]),
        ranks=np.concatenate([output.ranks for output in outputs]),
        top_ids=np.concatenate([_widened(output.top_ids, num_top) for output in outputs]),
        top_logprobs=np.concatenate([_widened(output.top_logprobs, num_top) for output in outputs]),
    )


def _widened(values: NDArray[np.generic], width: int) -> NDArray[np.generic]:
    """Pad the rows of [L, M] with zeros."""
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))
