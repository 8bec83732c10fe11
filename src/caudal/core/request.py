"""Request, what was asked; Sequence, how far it has come; SequenceUpdate, what a step has to say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from caudal.core.speculation import DraftState


class FinishReason(StrEnum):
    """Why a request ended. The values are those of `caudal.messages.FINISH_REASONS`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Status(Enum):
    """Where a sequence is. A preempted one is waiting again."""

    WAITING = 1
    RUNNING = 2
    FINISHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One continuation that was asked for.

    Attributes:
        request_id: unique among the unfinished requests.
        prompt_token_ids: at least one token.
        max_tokens: at most this many tokens of answer; None is as many as the context holds.
        min_tokens: stop tokens are ignored until the answer has this many tokens.
        stop_token_ids: tokens that end the answer; the model's end-of-text is among them unless it is to be ignored.
        priority: smaller is more urgent, as in vLLM. A less urgent request waits for more urgent ones, but not for
            ever: see Aging and FairShare.
        tenant: requests of one priority share each step fairly between tenants.
        cache_salt: only requests with equal salts and adapters may share KV blocks.
        adapter: name of the adapter (LoRA) whose weights the KV depends on; "" is the base model.
        wants_prompt_logits: plan logits for every prompt token (prompt log-probabilities).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""
    wants_prompt_logits: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The progress of a request. Written by the scheduler and its KV cache only.

    Attributes:
        seq_id: order of arrival; never used again.
        token_ids: prompt and answer so far.
        num_prompt_tokens: how many of them are prompt.
        max_num_tokens: prompt and answer end here at the latest.
        request: what was asked; Aging may have given it another priority.
        request_id, stop_token_ids, wants_prompt_logits: the request's, at hand for what every token passes through.
        num_computed_tokens: tokens [0, this) have their KV in the blocks.
        num_cached_tokens: prompt tokens found in the prefix cache when the request first started (for `usage`).
        num_scored_tokens: prompt tokens whose logits were already given, when they are wanted.
        num_overtakes: sequences admitted past this one while it did not fit.
        tables: per KV group, block ids from the beginning, -1 where a window has let one go; all of one length.
        block_tables: the same as tuples, made anew only when a table changes.
        num_slots: tokens that the blocks of a table hold.
        digests: names of the full blocks, chained from the first; computed once each.
        num_published_blocks: blocks [0, this) are in the prefix index, or were.
        first_held: per KV group, the first block that is still held.
        next_milestone: number of computed tokens at which a block is full or leaves a window.
        draft_state: what speculation keeps of it.
    """

    seq_id: int
    request: Request
    token_ids: list[int]
    num_prompt_tokens: int
    max_num_tokens: int
    request_id: str = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    wants_prompt_logits: bool = field(init=False)
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_scored_tokens: int = 0
    num_overtakes: int = 0
    has_started: bool = False
    tables: list[list[int]] = field(default_factory=list)
    block_tables: tuple[tuple[int, ...], ...] = ()
    num_slots: int = 0
    digests: list[bytes] = field(default_factory=list)
    num_published_blocks: int = 0
    first_held: list[int] = field(default_factory=list)
    next_milestone: int = 0
    draft_state: DraftState | None = None

    def __post_init__(self) -> None:
        """Copy what is to be at hand."""
        self.request_id = self.request.request_id
        self.stop_token_ids = self.request.stop_token_ids
        self.wants_prompt_logits = self.request.wants_prompt_logits

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first; the largest is preempted first."""
        return self.request.priority, self.seq_id

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and answer so far."""
        return len(self.token_ids)

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens whose KV is still to be computed; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens


class SequenceUpdate(NamedTuple):
    """What happened to a request. Exactly one update of a request has a finish_reason, and it is the last.

    Attributes:
        new_token_ids: tokens since the last update; a stop token that ended the answer is included.
        stop_token_id: the token that ended the answer, when one did.
        num_cached_tokens: prompt tokens that the prefix cache gave.
        first_sampled: where the first of new_token_ids stands among the tokens given to `Scheduler.commit`.
    """

    request_id: str
    new_token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    first_sampled: int = 0
