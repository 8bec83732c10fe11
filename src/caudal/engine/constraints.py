"""Requests whose answers follow a grammar: what may come next, worked out beside the forward pass.

A grammar is prepared in a thread; its request is scheduled when that is done. In each step, threads write the masks of
the rows that sample under a grammar while the forward pass runs, and the sampler waits for them. A grammar that fails,
or takes too long, fails its request alone.

However many grammars are slow, a step waits for all their masks MASK_TIMEOUT_S at most, and for all their guesses
DRAFT_TIMEOUT_S. A grammar whose guess comes too late is not asked for one again.

The grammar says when an answer ends: a token of end is among those that it allows when the answer may end there.
`ignore_eos` and `min_tokens` keep such tokens away as long as something else can follow.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from caudal.constrain.finish import finished
from caudal.constrain.limits import MASK_TIMEOUT_S
from caudal.constrain.matcher import GrammarError, Matcher, TokenTable
from caudal.core.ngram_drafter import NgramDrafter
from caudal.core.speculation import DraftState
from caudal.engine.grammar_threads import GrammarThreads, Job, Result
from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from caudal.core.request import Sequence as TokenSequence
    from caudal.core.speculation import Drafter
    from caudal.core.step_plan import PlannedRow, StepPlan
    from caudal.messages import AddRequest, Vocabulary

MAX_PREPARED = 32
BUILD_TIMEOUT_S = 60.0
DRAFT_TIMEOUT_S = 0.25
_BUILD_WAIT_S = 0.01


@dataclass(slots=True, eq=False)
class Constraint:
    """One answer's grammar and how far the answer has come in it.

    Attributes:
        discouraged: tokens that may end the answer only if nothing else can follow, each with the length that the
            answer must have for that not to apply any more.
        failure: why the grammar cannot go on, if it cannot.
        is_drafting: whether it may still be asked for guesses.
        lock: of the matcher; see in_use.
    """

    matcher: Matcher
    discouraged: dict[int, float]
    failure: str | None = None
    is_drafting: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have the matcher for oneself: a guess that came too late may still be under way.

        Raises:
            TimeoutError: it was not to be had in the time for a mask.
        """
        if not self.lock.acquire(timeout=MASK_TIMEOUT_S):
            raise TimeoutError
        try:
            yield
        finally:
            self.lock.release()

    def follow(self, seq_token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Consume what the answer got since the last time."""
        self.matcher.consume(list(seq_token_ids[num_prompt_tokens + self.matcher.num_consumed :]))


class DraftTime:
    """How long a step may still wait for guesses, all grammars together."""

    def __init__(self) -> None:
        self.left_s = 0.0

    def renew(self) -> None:
        """Begin a step."""
        self.left_s = DRAFT_TIMEOUT_S

    def call(self, threads: GrammarThreads, work: Callable[[], Result]) -> Result:
        """Return what a thread works out. Raises TimeoutError if that takes longer than is left."""
        start_s = time.monotonic()
        try:
            return threads.call(work, self.left_s)
        finally:
            self.left_s = max(0.0, self.left_s - (time.monotonic() - start_s))


class GrammarDrafter:
    """Guesses the tokens of what a grammar forces, such as the names in a JSON object."""

    def __init__(
        self, constraint: Constraint, num_prompt_tokens: int, threads: GrammarThreads, time_left: DraftTime
    ) -> None:
        self._constraint = constraint
        self._num_prompt_tokens = num_prompt_tokens
        self._threads = threads
        self._time_left = time_left

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Return at most so many tokens of the only text that can follow."""
        return self._ask(token_ids, self._constraint.matcher.forced)[:max_tokens]

    def accepted(self, token_ids: Sequence[int], draft: tuple[int, ...]) -> tuple[int, ...]:
        """Return a draft up to the first token that the grammar refuses."""
        matcher = self._constraint.matcher
        return self._ask(token_ids, lambda: list(draft[: matcher.accepted(list(draft))]))

    def _ask(self, token_ids: Sequence[int], question: Callable[[], list[int]]) -> tuple[int, ...]:
        constraint = self._constraint
        if constraint.failure is not None or not constraint.is_drafting or not self._time_left.left_s:
            return ()

        def work() -> list[int]:
            with constraint.in_use():
                constraint.follow(token_ids, self._num_prompt_tokens)
                return question()

        try:
            return tuple(self._time_left.call(self._threads, work))
        except TimeoutError:
            constraint.is_drafting = False  # its mask may come in time all the same
            return ()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            constraint.failure = failure_of(error)
            return ()


class LawfulDrafter:
    """Another drafter's guesses, up to the first that the grammar refuses."""

    def __init__(self, inner: Drafter, grammar: GrammarDrafter) -> None:
        self._inner = inner
        self._grammar = grammar

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Return at most so many tokens that may follow."""
        draft = self._inner.propose(token_ids, max_tokens)
        return self._grammar.accepted(token_ids, draft) if draft else ()


@dataclass(slots=True)
class StepMasks:
    """The masks of one step, while threads write them.

    Attributes:
        masks: [M, W] words, as SamplingBatch has them.
        mask_rows: [L], which of them a sampled token has.
        jobs: who writes which rows, for which request.
    """

    masks: NDArray[np.uint32]
    mask_rows: NDArray[np.int32]
    jobs: list[tuple[Job[None], str, slice]] = field(default_factory=list)


class Constraints:
    """The grammars of an engine's requests.

    Args:
        vocab_size: of the model.
        num_threads: that write masks.
    """

    def __init__(self, vocab_size: int, num_threads: int) -> None:
        self._vocab_size = vocab_size
        self._num_words = (vocab_size + 31) // 32
        self.threads = GrammarThreads(max(2, min(num_threads, 4)))
        self._builders = GrammarThreads(2)
        self._table: Job[TokenTable] | None = None
        self._prepared: OrderedDict[str, Matcher] = OrderedDict()
        self._building: dict[str, tuple[AddRequest, Job[Matcher], float]] = {}
        self._by_request_id: dict[str, Constraint] = {}
        self._masks = np.zeros((0, self._num_words), np.uint32)
        self._are_in_use = False  # by threads of a step that failed, or that did not come back
        self._draft_time = DraftTime()

    # Before a request is scheduled

    def know_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Learn what tokens stand for. Every request with a grammar comes after this."""
        self._prepared.clear()
        self._table = self._builders.submit(
            lambda: TokenTable(
                vocabulary.tokens, vocabulary.special_ids, vocabulary.eos_token_ids, vocab_size=self._vocab_size
            )
        )

    @property
    def num_building(self) -> int:
        """Requests whose grammar is being prepared."""
        return len(self._building)

    def build(self, request: AddRequest) -> None:
        """Begin to prepare a request's grammar; `built` gives the request when that is done.

        Raises:
            InvalidParameter: grammars cannot be used now.
        """
        table = self._table
        if table is None:
            message = "the engine was not told its vocabulary, which a grammar needs"
            raise InvalidParameter(message, parameter="grammar")
        if self.threads.is_overrun or self._builders.is_overrun:
            message = "too many grammars take too long on this server; try again later, or leave the grammar out"
            raise InvalidParameter(message, parameter="grammar")
        grammar = request.grammar
        known = self._prepared.get(grammar)

        def work() -> Matcher:
            if known is not None:
                return known.copy()
            table.wait(BUILD_TIMEOUT_S)
            return Matcher(table.result(), finished(grammar))

        self._building[request.request_id] = (request, self._builders.submit(work), time.monotonic() + BUILD_TIMEOUT_S)

    def built(self) -> list[tuple[AddRequest, Matcher | str]]:
        """Return the requests whose grammar is prepared, with it, or with why it cannot be used."""
        now_s = time.monotonic()
        done = [(request, job) for request, job, due_s in self._building.values() if job.is_done or now_s > due_s]
        results: list[tuple[AddRequest, Matcher | str]] = []
        for request, job in done:
            if not job.is_done:
                self.stop_building(request.request_id)
                results.append((request, "the grammar of this answer takes too long to prepare; make it simpler"))
                continue
            del self._building[request.request_id]
            if job.error is not None:
                results.append((request, failure_of(job.error)))
                continue
            matcher = job.result()
            if request.grammar not in self._prepared:
                self._prepared[request.grammar] = matcher.copy()
                if len(self._prepared) > MAX_PREPARED:
                    self._prepared.popitem(last=False)
            results.append((request, matcher))
        return results

    def wait_for_build(self) -> None:
        """Let a moment pass, or less if a grammar is prepared meanwhile."""
        for _, job, _ in self._building.values():
            job.wait(_BUILD_WAIT_S)
            return

    def stop_building(self, request_id: str) -> bool:
        """Forget a request whose grammar is being prepared; return whether there was one."""
        entry = self._building.pop(request_id, None)
        if entry is not None:
            self._builders.give_up(entry[1])
        return entry is not None

    def stop_all_building(self) -> list[str]:
        """Forget every request whose grammar is being prepared; return their ids."""
        return [request_id for request_id in tuple(self._building) if self.stop_building(request_id)]

    # While it runs

    def begin_step(self) -> None:
        """Begin a step, before it is planned."""
        self._draft_time.renew()

    def begin(self, request: AddRequest, matcher: Matcher) -> Constraint:
        """Take a request's grammar in; `forget` ends that."""
        params = request.params
        discouraged = dict.fromkeys(params.stop_token_ids, float(params.min_tokens))
        discouraged |= dict.fromkeys(request.eos_token_ids, float("inf") if params.ignore_eos else params.min_tokens)
        known = {i: until for i, until in discouraged.items() if until > 0 and 0 <= i < self._vocab_size}
        constraint = self._by_request_id[request.request_id] = Constraint(matcher, known)
        return constraint

    def draft_state(self, constraint: Constraint, num_prompt_tokens: int) -> DraftState:
        """Return who guesses for an answer with a grammar."""
        grammar = GrammarDrafter(constraint, num_prompt_tokens, self.threads, self._draft_time)
        return DraftState(LawfulDrafter(NgramDrafter(), grammar), grammar)

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._by_request_id.pop(request_id, None)

    def start_masks(self, plan: StepPlan, sequences: Sequence[TokenSequence]) -> StepMasks | None:
        """Have the masks of a plan's rows written; None if none of them follows a grammar.

        Args:
            plan: what the step computes.
            sequences: of its rows.
        """
        if not self._by_request_id:
            return None
        mask_rows: list[int] = []
        wanted: list[tuple[PlannedRow, TokenSequence, Constraint, int]] = []
        num_masks = 0
        for row, seq in zip(plan.rows, sequences, strict=True):
            if not row.samples:
                continue
            constraint = self._by_request_id.get(seq.request_id)
            size = 1 + len(row.draft)
            if constraint is None:
                mask_rows += [-1] * size
                continue
            mask_rows += range(num_masks, num_masks + size)
            wanted.append((row, seq, constraint, num_masks))
            num_masks += size
        if not wanted:
            return None
        if self._are_in_use or len(self._masks) < num_masks:
            self._masks = np.zeros((2 * num_masks, self._num_words), np.uint32)
        self._are_in_use = True
        step = StepMasks(self._masks, np.array(mask_rows, np.int32))
        for row, seq, constraint, first in wanted:
            rows = slice(first, first + 1 + len(row.draft))
            job = self.threads.submit(_writer(row, seq, constraint, self._masks[rows]))
            step.jobs.append((job, seq.request_id, rows))
        return step

    def finish_masks(self, step: StepMasks) -> list[tuple[str, str]]:
        """Wait for a step's masks; return the requests whose grammar failed, and why. Their rows sample anything."""
        self._are_in_use = not self.threads.wait_all([job for job, _, _ in step.jobs], MASK_TIMEOUT_S)
        failed = []
        for job, request_id, rows in step.jobs:
            constraint = self._by_request_id[request_id]
            if job.is_done and job.error is None:
                continue
            constraint.failure = constraint.failure or failure_of(job.error or TimeoutError())
            step.mask_rows[(step.mask_rows >= rows.start) & (step.mask_rows < rows.stop)] = -1
            failed.append((request_id, constraint.failure))
        return failed


_ANYTHING = np.uint32(0xFFFFFFFF)


def _discourage(mask: NDArray[np.uint32], token_ids: Sequence[int]) -> None:
    """Clear the bits of tokens, unless no other is set."""
    if not token_ids:
        return
    rest = mask.copy()
    for token_id in token_ids:
        rest[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
    if rest.any():
        mask[:] = rest


def _writer(
    row: PlannedRow, seq: TokenSequence, constraint: Constraint, masks: NDArray[np.uint32]
) -> Callable[[], None]:
    """Return the work of writing one row's masks: one behind its last token, and one behind each of its draft."""

    def work() -> None:
        if constraint.failure is not None:
            raise GrammarError(constraint.failure)
        num_bytes = masks.shape[1] * masks.itemsize
        with constraint.in_use():
            constraint.follow(seq.token_ids, seq.num_prompt_tokens)
            num_written = constraint.matcher.fill_masks(masks.ctypes.data, num_bytes, list(row.draft))
        masks[num_written:] = _ANYTHING  # behind a guess that was refused: nobody will look
        num_answered = len(seq.token_ids) - seq.num_prompt_tokens
        for index in range(num_written):
            length = num_answered + index
            _discourage(masks[index], [i for i, until in constraint.discouraged.items() if length < until])

    return work


def failure_of(error: BaseException) -> str:
    """Say to a user why a grammar cannot be used, or cannot go on."""
    if isinstance(error, TimeoutError):
        return f"the grammar of this answer took more than {MASK_TIMEOUT_S:g} s over one token; make it simpler"
    reason = str(error) if isinstance(error, GrammarError) else type(error).__name__
    return f"the grammar of this answer cannot be followed: {reason}"
