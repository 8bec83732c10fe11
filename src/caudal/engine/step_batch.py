"""StepBatch: the arrays that a forward pass reads. Ragged, without padding; prefill and decode rows mix.

Legend: T tokens, R rows (sequences), B blocks of the longest table, L rows of logits, G KV groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from caudal.core.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step, ready for a backend. All arrays are int32 and C-contiguous.

    Attributes:
        token_ids: [T].
        positions: [T], position of each token in its own sequence.
        query_starts: [R+1], row r owns tokens query_starts[r]:query_starts[r+1].
        context_lens: [R], tokens visible to the row's last query: those before plus this step's.
        block_tables: G arrays [R, B]; -1 past the end and where a window has let a block go.
        slot_mapping: G arrays [T], where each token's KV goes: block_id * block_size + offset.
        logit_rows: [L], indices of the tokens whose logits are wanted.
        adapter_ids: [R], 0 is the base model.
        block_size: tokens in a KV block.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: tuple[NDArray[np.int32], ...]
    slot_mapping: tuple[NDArray[np.int32], ...]
    logit_rows: NDArray[np.int32]
    adapter_ids: NDArray[np.int32]
    block_size: int


class BlockTableArrays:
    """Block tables as arrays [R, B], made anew only when they differ from the last plan's: every block_size tokens."""

    def __init__(self) -> None:
        self._tables: tuple[tuple[tuple[int, ...], ...], ...] = ()
        self._arrays: tuple[NDArray[np.int32], ...] = ()

    def of(self, plan: StepPlan) -> tuple[NDArray[np.int32], ...]:
        """Return an array for every KV group. They are shared between calls and must not be changed."""
        tables = tuple(row.block_tables for row in plan.rows)
        if tables != self._tables:
            self._tables = tables
            self._arrays = tuple(_table_array([row[group] for row in tables]) for group in range(len(tables[0])))
        return self._arrays


def _table_array(tables: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
    array = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for index, ids in enumerate(tables):
        array[index, : len(ids)] = ids
    return array


def build_step_batch(
    plan: StepPlan, tokens_of: Callable[[int], Sequence[int]], block_tables: BlockTableArrays | None = None
) -> StepBatch:
    """Turn a plan into arrays.

    Args:
        plan: what the step computes.
        tokens_of: gives a sequence's token ids, prompt and answer so far, by seq_id.
        block_tables: keeps the tables from step to step.
    """
    num_rows = len(plan.rows)
    starts = np.array([row.start for row in plan.rows], np.int32)
    tables = (block_tables or BlockTableArrays()).of(plan)
    if all(row.num_tokens == row.num_logits == 1 for row in plan.rows):  # nothing but decoding: the step that counts
        token_ids = [tokens_of(row.seq_id)[row.start] for row in plan.rows]
        positions, context_lens = starts, starts + np.int32(1)
        query_starts = np.arange(num_rows + 1, dtype=np.int32)
        rows = logit_rows = query_starts[:-1]
    else:
        lengths = np.array([row.num_tokens for row in plan.rows], np.int32)
        query_starts = np.zeros(num_rows + 1, np.int32)
        np.cumsum(lengths, out=query_starts[1:])
        token_ids = []
        for row in plan.rows:
            token_ids += tokens_of(row.seq_id)[row.start : row.start + row.num_tokens - len(row.draft)]
            token_ids += row.draft
        ends = zip(plan.rows, query_starts[1:].tolist(), strict=True)
        logit_rows = np.array([i for row, end in ends for i in range(end - row.num_logits, end)], np.int32)
        positions = np.arange(query_starts[-1], dtype=np.int32) + np.repeat(starts - query_starts[:-1], lengths)
        rows = np.arange(num_rows, dtype=np.int32).repeat(lengths)
        context_lens = starts + lengths
    blocks, offsets = np.divmod(positions, np.int32(plan.block_size))
    return StepBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=tables,
        slot_mapping=tuple(table[rows, blocks] * np.int32(plan.block_size) + offsets for table in tables),
        logit_rows=logit_rows,
        adapter_ids=np.zeros(num_rows, np.int32),
        block_size=plan.block_size,
    )
