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


class StepArrays:
    """Makes StepBatches, and keeps what does not change from step to step.

    The arrays of a batch may be shared with those of other steps and must not be changed.
    """

    def __init__(self) -> None:
        self._tables: tuple[tuple[tuple[int, ...], ...], ...] = ()
        self._table_arrays: tuple[NDArray[np.int32], ...] = ()
        self._counts: dict[int, NDArray[np.int32]] = {}

    def batch(self, plan: StepPlan, tokens_of: Callable[[int], Sequence[int]]) -> StepBatch:
        """Turn a plan into arrays.

        Args:
            plan: what the step computes.
            tokens_of: gives a sequence's token ids, prompt and answer so far, by seq_id.
        """
        tables = self._tables_of(plan)
        if all(row.num_tokens == row.num_logits == 1 for row in plan.rows):
            return self._decode(plan, tokens_of, tables)
        return _ragged(plan, tokens_of, tables)

    def _tables_of(self, plan: StepPlan) -> tuple[NDArray[np.int32], ...]:
        """Return the block tables [R, B] of every KV group; new ones only every block_size tokens."""
        tables = tuple(row.block_tables for row in plan.rows)
        if tables != self._tables:
            self._tables = tables
            self._table_arrays = tuple(_table_array([row[group] for row in tables]) for group in range(len(tables[0])))
        return self._table_arrays

    def _decode(
        self, plan: StepPlan, tokens_of: Callable[[int], Sequence[int]], tables: tuple[NDArray[np.int32], ...]
    ) -> StepBatch:
        """Nothing but one token a row: the step that counts. One conversion of lists, for each costs microseconds."""
        rows, size = plan.rows, plan.block_size
        positions = [row.start for row in rows]
        values = [tokens_of(row.seq_id)[row.start] for row in rows]
        values += positions
        values += [position + 1 for position in positions]
        for group in range(len(tables)):
            values += [row.block_tables[group][row.start // size] * size + row.start % size for row in rows]
        token_ids, position_array, context_lens, *slots = np.array(values, np.int32).reshape(-1, len(rows))
        counts = self._counts.get(len(rows))
        if counts is None:
            counts = self._counts[len(rows)] = np.arange(len(rows) + 1, dtype=np.int32)
        return StepBatch(
            token_ids=token_ids,
            positions=position_array,
            query_starts=counts,
            context_lens=context_lens,
            block_tables=tables,
            slot_mapping=tuple(slots),
            logit_rows=counts[:-1],
            adapter_ids=np.zeros(len(rows), np.int32),
            block_size=size,
        )


def build_step_batch(plan: StepPlan, tokens_of: Callable[[int], Sequence[int]]) -> StepBatch:
    """Turn a single plan into arrays."""
    return StepArrays().batch(plan, tokens_of)


def _table_array(tables: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
    array = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for index, ids in enumerate(tables):
        array[index, : len(ids)] = ids
    return array


def _ragged(
    plan: StepPlan, tokens_of: Callable[[int], Sequence[int]], tables: tuple[NDArray[np.int32], ...]
) -> StepBatch:
    """Rows of any lengths."""
    num_rows = len(plan.rows)
    starts = np.array([row.start for row in plan.rows], np.int32)
    lengths = np.array([row.num_tokens for row in plan.rows], np.int32)
    query_starts = np.zeros(num_rows + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    token_ids: list[int] = []
    for row in plan.rows:
        token_ids += tokens_of(row.seq_id)[row.start : row.start + row.num_tokens - len(row.draft)]
        token_ids += row.draft
    ends = zip(plan.rows, query_starts[1:].tolist(), strict=True)
    positions = np.arange(query_starts[-1], dtype=np.int32) + np.repeat(starts - query_starts[:-1], lengths)
    rows = np.arange(num_rows, dtype=np.int32).repeat(lengths)
    blocks, offsets = np.divmod(positions, np.int32(plan.block_size))
    return StepBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        query_starts=query_starts,
        context_lens=starts + lengths,
        block_tables=tables,
        slot_mapping=tuple(table[rows, blocks] * np.int32(plan.block_size) + offsets for table in tables),
        logit_rows=np.array([i for row, end in ends for i in range(end - row.num_logits, end)], np.int32),
        adapter_ids=np.zeros(num_rows, np.int32),
        block_size=plan.block_size,
    )
