"""Speculation: guess the next tokens of a few sequences, so that one step can check several at once.

A step reads all weights whether it computes one token or eight, so on a CPU a checked guess costs a fraction of a
token. The step samples behind every guessed token as if those before it were known, and the scheduler keeps tokens up
to the first that differs from its guess. So the answer is that of one token at a time, to the bit; guesses change
when it comes. Source of checking guesses in one step: Leviathan et al. (arXiv:2211.17192).

How many tokens to guess follows from how often this sequence's guesses were right, and from TOKEN_COST. A sequence
whose guesses do not pay is left alone for a while, each time longer. Nothing here looks at a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from caudal.core.ngram_drafter import NgramDrafter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as SequenceOf

    from caudal.core.request import Sequence
    from caudal.core.step_plan import PlannedRow

MAX_STEP_TOKENS = 8
TOKEN_COST = 0.15
FIRST_RATE = 0.5
KNOWN_RATE = 0.95
LEARNING_RATE = 1 / 8
FIRST_REST = 8
LONGEST_REST = 128


class Drafter(Protocol):
    """Guesses how one sequence goes on: by looking back, or with a small model's help."""

    def propose(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[int, ...]:
        """At most `max_tokens` tokens that may follow `token_ids`, which only ever grow. Empty is no idea."""


class DraftLength:
    """How many tokens are worth guessing for one sequence.

    Attributes:
        rate: the part of guessed tokens that were right, the latest counting most.
    """

    def __init__(self, first_rate: float = FIRST_RATE) -> None:
        self.rate = first_rate
        self._resting = 0
        self._next_rest = FIRST_REST

    def choose(self, limit: int, token_cost: float) -> int:
        """The length, at most `limit`, with most tokens for the time when a token more costs `token_cost` of a step.

        A sequence whose guesses do not pay rests for some steps, and then tries one token.
        """
        if self._resting:
            self._resting -= 1
            return 0
        best_speed, length = 1.0, 0
        likelihood = expected = 1.0
        for count in range(1, limit + 1):
            likelihood *= self.rate
            expected += likelihood
            speed = expected / (1.0 + token_cost * count)
            if speed <= best_speed:
                break
            best_speed, length = speed, count
        return length or min(limit, 1)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Take the outcome of a draft into account: tokens behind the first wrong one say nothing."""
        for _ in range(num_accepted):
            self.rate += (1.0 - self.rate) * LEARNING_RATE
        if num_accepted < num_drafted:
            self.rate -= self.rate * LEARNING_RATE
        if self.rate > TOKEN_COST:
            self._next_rest = FIRST_REST
        else:
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, LONGEST_REST)


class DraftState:
    """What speculation keeps of one sequence.

    Args:
        drafter: guesses how the sequence goes on.
        knower: asked first, if there is one; its guesses are as good as certain, as they follow from rules.
    """

    def __init__(self, drafter: Drafter, knower: Drafter | None = None) -> None:
        guesses = DraftLength()
        self._sources = [(drafter, guesses)]
        if knower is not None:
            self._sources.insert(0, (knower, DraftLength(KNOWN_RATE)))
        self.length = guesses

    def draft(self, token_ids: SequenceOf[int], limit: int, token_cost: float) -> tuple[int, ...]:
        """Return at most `limit` tokens that may follow; `length` is then the one that learns from them."""
        for drafter, length in self._sources:
            num_tokens = length.choose(limit, token_cost)
            draft = drafter.propose(token_ids, num_tokens) if num_tokens else ()
            if draft:
                self.length = length
                return draft
        return ()


class Speculation:
    """Adds drafts to the rows of a step, and learns from what became of them.

    A draft takes only what nobody else can use: tokens of a step that is nearly empty, and free slots of the block in
    which its sequence already writes. So it displaces nobody, and the KV cache does not know that drafts exist.

    Args:
        max_draft_len: most tokens guessed for a sequence in a step.
        max_step_tokens: a step with drafts has at most this many tokens, and at most MAX_STEP_TOKENS.
        block_size: tokens in a KV block.
        max_model_len: longest prompt plus answer.
        make_drafter: called once for each sequence that is drafted for.
    """

    def __init__(
        self,
        max_draft_len: int,
        max_step_tokens: int,
        block_size: int,
        max_model_len: int,
        make_drafter: Callable[[], Drafter] = NgramDrafter,
    ) -> None:
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._max_draft_len = max_draft_len
        self._max_step_tokens = min(max_step_tokens, MAX_STEP_TOKENS)
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._make_drafter = make_drafter

    def add_drafts(self, rows: list[PlannedRow], sequences: Mapping[int, Sequence]) -> None:
        """Lengthen the rows that decode, the budget shared evenly between those that are still to come."""
        if len(rows) >= self._max_step_tokens:
            return
        room = self._max_step_tokens - sum(row.num_tokens for row in rows)
        token_cost = TOKEN_COST * len(rows) / (1.0 + TOKEN_COST * (len(rows) - 1))
        for index, row in enumerate(rows):
            seq = sequences[row.seq_id]
            limit = min(room // (len(rows) - index), self._max_draft_len, self._room_of(seq))
            if limit < 1 or row.num_tokens > 1 or not row.samples:
                continue
            state = seq.draft_state
            if state is None:
                state = seq.draft_state = DraftState(self._make_drafter())
            draft = state.draft(seq.token_ids, limit, token_cost)
            if draft:
                room -= len(draft)
                size = 1 + len(draft)
                rows[index] = row._replace(num_tokens=size, num_logits=size, draft=draft)

    def _room_of(self, seq: Sequence) -> int:
        """How long a draft may be: within the sequence's blocks, and so short that a token may follow it."""
        num_tokens = len(seq.token_ids)
        num_free_slots = len(seq.tables[0]) * self._block_size - num_tokens
        num_more_tokens = self._max_model_len - num_tokens
        if seq.request.max_tokens is not None:
            num_more_tokens = min(num_more_tokens, seq.num_prompt_tokens + seq.request.max_tokens - num_tokens)
        return min(num_free_slots, num_more_tokens - 1)

    def learn(self, seq: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Count a draft, of which the first `num_accepted` tokens were kept."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        assert seq.draft_state is not None, "a draft without a drafter"
        seq.draft_state.length.learn(num_drafted, num_accepted)
