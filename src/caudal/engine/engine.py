"""Engine: requests in, updates out, one step at a time. It runs in a process of its own, or inside LLM."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from caudal.core.request import FinishReason, Request, SequenceUpdate
from caudal.core.scheduler import Scheduler, SchedulerConfig
from caudal.engine.prompt_logprobs import PromptLogprobs
from caudal.engine.request_table import refusal
from caudal.engine.row_by_row import compute_row_by_row
from caudal.engine.sampling_batch import RowSampling, SamplingArrays
from caudal.engine.step_batch import StepArrays
from caudal.errors import InvalidParameter, Overloaded, RequestError
from caudal.messages import STEP_TOKENS, EngineStats, StartTimes, TokenLogprobs, Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from caudal.backends.base import SampleOutput
    from caudal.config import EngineConfig
    from caudal.core.request import Sequence as TokenSequence
    from caudal.core.step_plan import PlannedRow, StepPlan
    from caudal.engine.constraints import Constraint, Constraints
    from caudal.engine.model_facts import ModelFacts
    from caudal.engine.runner import Runner
    from caudal.messages import AddRequest, EngineReady, Vocabulary

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """What the engine keeps of a request beside the scheduler's sequence. Times are of the monotonic clock."""

    sampling: RowSampling
    prompt_logprobs: PromptLogprobs | None
    added_s: float
    started_s: float = 0.0
    has_token: bool = False


class Engine:
    """Plans, computes and samples steps.

    A request may fail; the engine does not: a step with an exception is computed again row by row, and the requests
    whose rows fail alone end with an error.
    """

    def __init__(self, config: EngineConfig, runner: Runner, facts: ModelFacts, max_model_len: int) -> None:
        self.config = config
        self._runner = runner
        self._facts = facts
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=max_model_len,
                block_size=config.block_size,
                max_queue_len=config.max_queue_len,
                enable_prefix_caching=config.enable_prefix_caching,
                num_speculative_tokens=config.num_speculative_tokens,
                prefill_per_decode=config.prefill_per_decode,
                context_per_token=runner.context_per_token,
            ),
            runner.groups,
        )
        self.max_model_len = self._scheduler.max_model_len
        self._running: dict[str, _Running] = {}
        self._reporting: set[str] = set()  # of them, those whose next update says more than its tokens
        self._constraints: Constraints | None = None
        self._failed: list[tuple[str, str]] = []  # requests that failed in this step, and why
        self._num_unscored = 0  # of them, those whose prompt's log-probabilities are still to be told
        self._step_arrays = StepArrays()
        self._sampling_arrays = SamplingArrays(self._sampling_of)
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._step_tokens = [0] * (len(STEP_TOKENS) + 2)

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self._scheduler.has_work or (self._constraints is not None and self._constraints.num_building > 0)

    def know_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Learn what tokens stand for; requests with a grammar come after this."""
        from caudal.engine.constraints import Constraints  # noqa: PLC0415 - most engines never see a grammar

        if self._constraints is None:
            self._constraints = Constraints(self._facts.vocab_size, self._facts.num_threads)
        self._constraints.know_vocabulary(vocabulary)

    def add_request(self, request: AddRequest) -> None:
        """Take a request in. One with a grammar is scheduled when that is prepared.

        Raises:
            PromptTooLong, InvalidParameter: it can never be served.
            Overloaded: the queue is full.
        """
        self._check_token_ids("prompt", request.prompt_token_ids)
        self._check_token_ids("logit_bias", request.params.logit_bias)
        if not request.grammar:
            self._add(request)
        elif self._constraints is None:
            message = "the engine was not told its vocabulary, which a grammar needs"
            raise InvalidParameter(message, parameter="grammar")
        elif self._constraints.num_building > self.config.max_queue_len:
            message = f"{self._constraints.num_building} grammars are being prepared, and no more may; try again later"
            raise Overloaded(message)
        else:
            self._constraints.build(request)

    def _add_built(self, constraints: Constraints) -> list[Update]:
        """Schedule the requests whose grammars are prepared; return the refusals."""
        refused: list[Update] = []
        for request, matcher in constraints.built():
            try:
                if isinstance(matcher, str):
                    raise InvalidParameter(matcher, parameter="grammar")
                self._add(request, constraints.begin(request, matcher))
            except (RequestError, Overloaded) as error:
                constraints.forget(request.request_id)
                refused.append(refusal(request.request_id, error))
        return refused

    def _add(self, request: AddRequest, constraint: Constraint | None = None) -> None:
        """Give a request to the scheduler. A grammar decides itself when its answer ends: see Constraints."""
        params = request.params
        ends = () if params.ignore_eos and constraint is None else request.eos_token_ids
        stops = tuple(dict.fromkeys([*ends, *params.stop_token_ids]))
        stops = tuple(token_id for token_id in stops if 0 <= token_id < self._facts.vocab_size)
        draft_state = None
        if constraint is not None and self._constraints is not None:
            params = msgspec.structs.replace(params, min_tokens=0)
            draft_state = self._constraints.draft_state(constraint, len(request.prompt_token_ids))
        self._scheduler.add(
            Request(
                request_id=request.request_id,
                prompt_token_ids=tuple(request.prompt_token_ids),
                max_tokens=params.max_tokens,
                min_tokens=params.min_tokens,
                stop_token_ids=frozenset(stops),
                priority=request.priority,
                tenant=request.tenant,
                cache_salt=request.cache_salt,
                wants_prompt_logits=params.prompt_logprobs is not None,
            ),
            draft_state,
        )
        collector = None if params.prompt_logprobs is None else PromptLogprobs(params.prompt_logprobs)
        self._running[request.request_id] = _Running(RowSampling.of(params, stops), collector, time.monotonic())
        self._num_unscored += collector is not None
        self._reporting.add(request.request_id)
        self._num_prompt_tokens += len(request.prompt_token_ids)

    def _check_token_ids(self, parameter: str, token_ids: list[int] | dict[int, float]) -> None:
        """Refuse ids that the model does not have, before they reach a kernel."""
        size = self._facts.vocab_size
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < size), None)
        if wrong is not None:
            message = f"{parameter} has token id {wrong}; expected ids from 0 to {size - 1}"
            raise InvalidParameter(message, parameter=parameter)

    def abort(self, request_id: str) -> Update | None:
        """Forget a request and return its last update; None if it is unknown."""
        if self._constraints is not None and self._constraints.stop_building(request_id):
            return Update(request_id=request_id, finish_reason=str(FinishReason.ABORT))
        update = self._scheduler.abort(request_id)
        return None if update is None else self._last_update(update)

    def step(self) -> list[Update]:
        """Run one step and say what happened. An interrupt (Ctrl-C) ends the step's requests and is passed on."""
        constraints = self._constraints
        refused = []
        if constraints is not None:
            constraints.begin_step()
            refused = self._add_built(constraints)
        plan = self._scheduler.schedule()
        if plan is None:
            if constraints is not None and not refused:
                constraints.wait_for_build()
            return refused
        if started := self._scheduler.take_started():
            self._note_start(started)
        return refused + self._run(plan)

    def _run(self, plan: StepPlan) -> list[Update]:
        try:
            sampled = self._computed(plan)
        except BaseException:
            self._give_up(plan)
            raise
        self._num_steps += 1
        return self._end_failed() + self._commit(plan, sampled)

    def _computed(self, plan: StepPlan) -> SampleOutput | None:
        """Compute a plan; if that fails, each of its rows alone, so that only those end that are at fault."""
        try:
            return self._compute(plan)
        except Exception:
            logger.exception("a step failed; its %d rows are computed one by one", len(plan.rows))
            return compute_row_by_row(plan, self._compute, self._note_failure)

    def _note_failure(self, row: PlannedRow, error: Exception) -> None:
        request_id = self._scheduler.sequence_of(row.seq_id).request_id
        reason = f"the engine failed while it computed this request ({type(error).__name__})"
        self._failed.append((request_id, reason))

    def _end_failed(self) -> list[Update]:
        """End the requests whose part of this step failed; the scheduler ignores their tokens."""
        updates = []
        while self._failed:
            request_id, reason = self._failed.pop()
            update = self._scheduler.abort(request_id, FinishReason.ERROR)
            if update is not None:
                updates.append(self._last_update(update, reason))
        return updates

    def _note_start(self, request_ids: list[str]) -> None:
        now_s = time.monotonic()
        for request_id in request_ids:
            if (running := self._running.get(request_id)) is not None:
                running.started_s = now_s

    def _compute(self, plan: StepPlan) -> SampleOutput | None:
        """Choose what follows sampling rows and tokens of drafts; score prompt tokens that were asked for.

        All arrays are made before the forward pass: afterwards what Python needs for that is in no cache.
        """
        columns, sequences = plan.columns(), self._scheduler.sequences_of(plan)
        batch = self._step_arrays.batch(plan, columns, [seq.token_ids for seq in sequences])
        sampling = self._sampling_arrays.batch(plan, columns, sequences, batch.context_lens)
        masks = None if self._constraints is None else self._constraints.start_masks(plan, sequences)
        num_tokens = len(batch.token_ids)
        self._step_tokens[bisect_left(STEP_TOKENS, num_tokens)] += 1
        self._step_tokens[-1] += num_tokens
        try:
            logits = self._runner.forward(batch)
        finally:
            if masks is not None and self._constraints is not None:
                self._failed += self._constraints.finish_masks(masks)
        if self._num_unscored:
            self._score_prompts(plan, logits)
        if masks is not None and sampling is not None:
            sampling = replace(sampling, masks=masks.masks, mask_rows=masks.mask_rows)
        return None if sampling is None else self._runner.sample(logits, sampling)

    def _sampling_of(self, seq: TokenSequence) -> RowSampling:
        return self._running[seq.request.request_id].sampling

    def _score_prompts(self, plan: StepPlan, logits: NDArray[np.float32]) -> None:
        end = 0
        for row in plan.rows:
            end += row.num_logits
            seq = self._scheduler.sequence_of(row.seq_id)
            collector = self._running[seq.request.request_id].prompt_logprobs
            if collector is None or not row.num_logits:  # without any, the positions may have been scored before
                continue
            first = row.start + row.num_tokens - row.num_logits
            known = seq.token_ids[first + 1 : min(first + 1 + row.num_logits, seq.num_prompt_tokens)]
            collector.add(first, logits[end - row.num_logits : end - row.num_logits + len(known)], known)

    def _commit(self, plan: StepPlan, sampled: SampleOutput | None) -> list[Update]:
        """Record the step's tokens. Where no logit is finite no token follows, and the request fails alone."""
        updates: list[Update] = []
        reporting = self._reporting
        num_tokens = 0
        for update in self._scheduler.commit(plan, [] if sampled is None else sampled.token_ids.tolist()):
            num_tokens += len(update.new_token_ids)
            if update.finish_reason is None and not (reporting and update.request_id in reporting):  # nearly always
                updates.append(
                    Update(
                        request_id=update.request_id,
                        token_ids=list(update.new_token_ids),
                        num_cached_tokens=update.num_cached_tokens,
                    )
                )
            elif update.finish_reason is not FinishReason.ERROR:
                updates.append(self._update(update, sampled))
            else:
                if update.new_token_ids:
                    updates.append(self._update(update._replace(finish_reason=None), sampled))
                updates.append(self._last_update(update, "the model's logits are not finite; no token can follow"))
        self._num_generation_tokens += num_tokens
        return updates

    def _update(self, update: SequenceUpdate, sampled: SampleOutput | None) -> Update:
        """Tell what a sequence's update says, log-probabilities that were asked for, and when its first token came."""
        running = self._running[update.request_id]
        start_times = None
        if not running.has_token and update.new_token_ids:
            running.has_token = True
            start_times = StartTimes(running.started_s - running.added_s, time.monotonic() - running.started_s)
        logprobs = None
        num_top = running.sampling.params.logprobs
        if sampled is not None and num_top is not None:
            places = range(update.first_sampled, update.first_sampled + len(update.new_token_ids))
            logprobs = [_logprobs_of(sampled, place, num_top) for place in places]
        prompt_logprobs = None
        if running.prompt_logprobs is not None:
            prompt_logprobs = running.prompt_logprobs.take()
            running.prompt_logprobs = None
            self._num_unscored -= 1
        if update.finish_reason is not None:
            del self._running[update.request_id]
            self._forget(update.request_id)
        elif num_top is None:
            self._reporting.discard(update.request_id)
        return Update(
            request_id=update.request_id,
            token_ids=list(update.new_token_ids),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=None if update.finish_reason is None else str(update.finish_reason),
            stop_token_id=update.stop_token_id,
            num_cached_tokens=update.num_cached_tokens,
            start_times=start_times,
        )

    def _last_update(self, update: SequenceUpdate, error: str | None = None) -> Update:
        """The end of a request that a step did not end."""
        running = self._running.pop(update.request_id, None)
        self._forget(update.request_id)
        self._num_unscored -= running is not None and running.prompt_logprobs is not None
        return Update(
            request_id=update.request_id,
            finish_reason=str(update.finish_reason),
            num_cached_tokens=update.num_cached_tokens,
            error=error,
        )

    def _forget(self, request_id: str) -> None:
        self._reporting.discard(request_id)
        if self._constraints is not None:
            self._constraints.forget(request_id)

    def _give_up(self, plan: StepPlan) -> None:
        """Forget the requests of an interrupted step. LLM, which alone is interrupted, sees that they are gone."""
        for update in self._scheduler.fail(plan):
            self._last_update(update)

    def fail_all(self, error: str) -> list[Update]:
        """Forget every request and return their last updates."""
        building = [] if self._constraints is None else self._constraints.stop_all_building()
        unbuilt = [Update(request_id=id_, finish_reason=str(FinishReason.ERROR), error=error) for id_ in building]
        updates = [self._scheduler.abort(request_id, FinishReason.ERROR) for request_id in tuple(self._running)]
        return unbuilt + [self._last_update(update, error) for update in updates if update is not None]

    def stats(self) -> EngineStats:
        """Return counters since start and gauges now."""
        stats = self._scheduler.stats()
        return EngineStats(
            num_steps=self._num_steps,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting + (0 if self._constraints is None else self._constraints.num_building),
            kv_blocks_total=stats.kv_blocks_total,
            kv_blocks_used=stats.kv_blocks_used,
            kv_slots_allocated=stats.kv_slots_allocated,
            kv_slots_used=stats.kv_slots_used,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_generation_tokens,
            prefix_cache_queries=stats.prefix_cache_queries,
            prefix_cache_hits=stats.prefix_cache_hits,
            num_preemptions=stats.num_preemptions,
            num_drafts=stats.num_drafts,
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            step_tokens=list(self._step_tokens),
            busy=self.has_work,
        )

    def ready_info(self) -> EngineReady:
        """Return what the API process wants to know about the loaded model."""
        return self._facts.ready(self.config, self._runner, self.max_model_len)


def _logprobs_of(sampled: SampleOutput, index: int, num_top: int) -> TokenLogprobs:
    return TokenLogprobs(
        token_id=int(sampled.token_ids[index]),
        logprob=float(sampled.logprobs[index]),
        rank=int(sampled.ranks[index]),
        top_ids=sampled.top_ids[index, :num_top].tolist(),
        top_logprobs=sampled.top_logprobs[index, :num_top].tolist(),
    )
