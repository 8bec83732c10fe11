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


def build_step_batch(plan: StepPlan, tokens_of: Callable[[int], Sequence[int]]) -> StepBatch:
    """Turn a plan into arrays. `tokens_of(seq_id)` gives a sequence's token ids, prompt and answer so far."""
    lengths = np.array([row.num_tokens for row in plan.rows], np.int32)
    starts = np.array([row.start for row in plan.rows], np.int32)
    query_starts = np.zeros(len(plan.rows) + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    token_ids: list[int] = []
    logit_rows: list[int] = []
    for row, end in zip(plan.rows, query_starts[1:].tolist(), strict=True):
        token_ids.extend(tokens_of(row.seq_id)[row.start : row.start + row.num_tokens])
        logit_rows.extend(range(end - row.num_logits, end))
    positions = np.arange(query_starts[-1], dtype=np.int32) + np.repeat(starts - query_starts[:-1], lengths)
    tables, slots = _group_arrays(plan, positions, lengths)
    return StepBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        query_starts=query_starts,
        context_lens=starts + lengths,
        block_tables=tables,
        slot_mapping=slots,
        logit_rows=np.array(logit_rows, np.int32),
        adapter_ids=np.zeros(len(plan.rows), np.int32),
        block_size=plan.block_size,
    )


def _group_arrays(
    plan: StepPlan, positions: NDArray[np.int32], lengths: NDArray[np.int32]
) -> tuple[tuple[NDArray[np.int32], ...], tuple[NDArray[np.int32], ...]]:
    """Block tables [R, B] and slot mapping [T] of every KV group."""
    num_groups = len(plan.rows[0].block_tables)
    rows = np.repeat(np.arange(len(plan.rows), dtype=np.int32), lengths)
    blocks, offsets = np.divmod(positions, np.int32(plan.block_size))
    tables, slots = [], []
    for group in range(num_groups):
        width = max(len(row.block_tables[group]) for row in plan.rows)
        table = np.full((len(plan.rows), width), -1, np.int32)
        for index, row in enumerate(plan.rows):
            ids = row.block_tables[group]
            table[index, : len(ids)] = ids
        tables.append(table)
        slots.append(table[rows, blocks] * np.int32(plan.block_size) + offsets)
    return tuple(tables), tuple(slots)
