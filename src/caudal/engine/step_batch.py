"""StepBatch: the arrays that a forward pass reads. Ragged, without padding; prefill and decode rows mix.

Legend: T tokens, R rows (sequences), B blocks of the longest table, L rows of logits, G KV groups.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from caudal.core.step_plan import PlanColumns, StepPlan


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


class _DecodeArrays:
    """The arrays of a step in which every row computes one token: written where they are, made once.

    That spares most of what numpy would run, which is in no cache when a step begins.
    """

    def __init__(self, num_rows: int, num_groups: int) -> None:
        values = np.empty((3 + num_groups, num_rows), np.int32)
        counts = np.arange(num_rows + 1, dtype=np.int32)
        self._layout = struct.Struct(f"={values.size}i")
        self._memory = values.data.cast("B")
        self._arrays = {
            "token_ids": values[0],
            "positions": values[1],
            "context_lens": values[2],
            "slot_mapping": tuple(values[3:]),
            "query_starts": counts,
            "logit_rows": counts[:-1],
            "adapter_ids": np.zeros(num_rows, np.int32),
        }
        self._batch: StepBatch | None = None

    def batch(self, values: list[int], tables: tuple[NDArray[np.int32], ...], block_size: int) -> StepBatch:
        """Write token ids, positions, context lengths and the slots of each group."""
        self._layout.pack_into(self._memory, 0, *values)
        if self._batch is None or self._batch.block_tables is not tables:
            self._batch = StepBatch(block_tables=tables, block_size=block_size, **self._arrays)
        return self._batch


class StepArrays:
    """Makes StepBatches, and keeps what does not change from step to step.

    A batch is valid until the next one is made; its arrays must not be changed.
    """

    def __init__(self) -> None:
        self._tables: tuple[tuple[tuple[int, ...], ...], ...] = ()
        self._table_arrays: tuple[NDArray[np.int32], ...] = ()
        self._decode_arrays: dict[int, _DecodeArrays] = {}

    def batch(self, plan: StepPlan, columns: PlanColumns, token_ids: Sequence[Sequence[int]]) -> StepBatch:
        """Turn a plan into arrays.

        Args:
            plan: what the step computes.
            columns: the plan's.
            token_ids: of each row's sequence, prompt and answer so far.
        """
        tables = self._tables_of(columns.block_tables)
        if columns.is_decode:
            return self._decode(columns, plan.block_size, token_ids, tables)
        return _ragged(plan, token_ids, tables)

    def _tables_of(self, tables: tuple[tuple[tuple[int, ...], ...], ...]) -> tuple[NDArray[np.int32], ...]:
        """Return the block tables [R, B] of every KV group; new ones only every block_size tokens."""
        if tables != self._tables:
            self._tables = tables
            self._table_arrays = tuple(_table_array([row[group] for row in tables]) for group in range(len(tables[0])))
        return self._table_arrays

    def _decode(
        self,
        columns: PlanColumns,
        size: int,
        token_ids: Sequence[Sequence[int]],
        tables: tuple[NDArray[np.int32], ...],
    ) -> StepBatch:
        """Nothing but one token a row: the step that counts."""
        starts = columns.start
        values = [ids[start] for ids, start in zip(token_ids, starts, strict=True)]
        values += starts
        values += [start + 1 for start in starts]
        for group in range(len(tables)):
            values += [
                of_row[group][start // size] * size + start % size
                for of_row, start in zip(columns.block_tables, starts, strict=True)
            ]
        arrays = self._decode_arrays.get(len(starts))
        if arrays is None:
            arrays = self._decode_arrays[len(starts)] = _DecodeArrays(len(starts), len(tables))
        return arrays.batch(values, tables, size)


def build_step_batch(plan: StepPlan, tokens_of: Callable[[int], Sequence[int]]) -> StepBatch:
    """Turn a single plan into arrays; `tokens_of` gives a sequence's token ids, by seq_id."""
    return StepArrays().batch(plan, plan.columns(), [tokens_of(row.seq_id) for row in plan.rows])


def _table_array(tables: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
    array = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for index, ids in enumerate(tables):
        array[index, : len(ids)] = ids
    return array


def _ragged(plan: StepPlan, token_ids_of: Sequence[Sequence[int]], tables: tuple[NDArray[np.int32], ...]) -> StepBatch:
    """Rows of any lengths."""
    num_rows = len(plan.rows)
    starts = np.array([row.start for row in plan.rows], np.int32)
    lengths = np.array([row.num_tokens for row in plan.rows], np.int32)
    query_starts = np.zeros(num_rows + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    token_ids: list[int] = []
    for row, known in zip(plan.rows, token_ids_of, strict=True):
        token_ids += known[row.start : row.start + row.num_tokens - len(row.draft)]
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
