"""StepPlan: who runs in a step, how many tokens, and where their KV lives. Plain ints, replayable as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class KVGroup:
    """A set of layers whose KV lives in one pool of blocks.

    Attributes:
        window: tokens that a query may look back, itself included; None is the whole sequence.
        num_blocks: blocks in the pool.
    """

    num_blocks: int
    window: int | None = None


class PlannedRow(NamedTuple):
    """One sequence's part of a step: tokens [start, start + num_tokens) are computed.

    A named tuple, because a step makes one per running sequence and this is the cheapest immutable record.

    Attributes:
        seq_id: the sequence.
        start: tokens of the sequence whose KV is already there.
        num_tokens: tokens to compute, at least 1.
        num_logits: logits wanted for this many of the last tokens: 0 inside a prompt, 1 to sample, more for
            prompt log-probabilities.
        samples: whether the last token's logits give the sequence its next token.
        block_tables: per KV group, the block ids of the sequence from its beginning; -1 where a sliding window
            has let a block go.
        draft: tokens guessed to come after the known ones; the row computes and samples behind each of them as well.
    """

    seq_id: int
    start: int
    num_tokens: int
    num_logits: int
    samples: bool
    block_tables: tuple[tuple[int, ...], ...]
    draft: tuple[int, ...] = ()


class PlanColumns(NamedTuple):
    """The rows of a plan, field by field; see PlannedRow."""

    seq_id: tuple[int, ...]
    start: tuple[int, ...]
    num_tokens: tuple[int, ...]
    num_logits: tuple[int, ...]
    samples: tuple[bool, ...]
    block_tables: tuple[tuple[tuple[int, ...], ...], ...]
    draft: tuple[tuple[int, ...], ...]

    @property
    def is_decode(self) -> bool:
        """Whether every row computes one token and samples behind it: most steps."""
        num_rows = len(self.seq_id)
        return self.num_tokens.count(1) == self.num_logits.count(1) == self.samples.count(True) == num_rows


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows in the order of the batch; decode rows and prefill rows mix."""

    step_id: int
    block_size: int
    rows: tuple[PlannedRow, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(row.num_tokens for row in self.rows)

    def columns(self) -> PlanColumns:
        """The rows field by field: many rows are looked through faster that way. There is at least one."""
        return PlanColumns(*zip(*self.rows, strict=True))

    @property
    def sampling_rows(self) -> tuple[PlannedRow, ...]:
        """The rows that give a next token, in order: `Scheduler.commit` expects 1 + len(draft) tokens for each."""
        return tuple(row for row in self.rows if row.samples)

    def to_json(self) -> str:
        """The plan as one line of JSON; equal plans give equal text."""
        rows = [row._asdict() for row in self.rows]
        return json.dumps({"step_id": self.step_id, "block_size": self.block_size, "rows": rows})

    @classmethod
    def from_json(cls, text: str) -> StepPlan:
        """The plan that `to_json` wrote, to replay a step."""
        plan = json.loads(text)
        rows = tuple(
            PlannedRow(**{**row, "block_tables": tuple(map(tuple, row["block_tables"])), "draft": tuple(row["draft"])})
            for row in plan["rows"]
        )
        return cls(step_id=plan["step_id"], block_size=plan["block_size"], rows=rows)
