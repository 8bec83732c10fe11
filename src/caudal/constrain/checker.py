"""Tries grammars in processes that can be killed.

llguidance has limits of its own, but some grammars still take it for ever, such as the intersection of twenty
patterns, and none of its calls can be interrupted. So nothing reaches an engine that was not tried here first.

What counts is a grammar's own processor time, so that no good one is refused because the machine is busy with
something else. If it is so busy that no answer comes for long, the grammar is not refused but to be sent again.
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from caudal.constrain.check_process import CheckJob, CheckResult
from caudal.constrain.check_worker import CheckWorker, OutOfTime, WorkerDied
from caudal.errors import EngineUnavailable, Overloaded

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECK_CPU_S = 3.0
CHECK_TIMEOUT_S = 15.0
MAX_KNOWN = 512
MAX_TRIALS = 128
MAX_TRIALS_OF_TENANT = 4
FAILURE_KNOWN_S = 60.0
_NUM_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class _Known:
    """What became of a grammar, and until when that is believed (seconds of time.monotonic)."""

    result: CheckResult
    until_s: float = float("inf")


@dataclass(slots=True, eq=False)
class _Trial:
    """A grammar that is being tried, or waits for its turn: whose it is, and who wants to know."""

    tenant: str
    work: Future[_Known]
    asked: list[Future[CheckResult]] = field(default_factory=list)


class GrammarChecker:
    """Knows which grammars can be used with one vocabulary.

    Threads wait for processes that do the work, both begun when they are first needed. What llguidance says is
    remembered; that a grammar took too much time or memory, for a minute.

    Args:
        vocab_size: number of token ids.
        control_tokens: the vocabulary's control tokens, text to id.
        cpu_s: a grammar that takes more processor time is refused.
        timeout_s: a grammar of which nothing is heard for so long is not tried any longer.
    """

    def __init__(
        self,
        vocab_size: int,
        control_tokens: Mapping[str, int],
        *,
        cpu_s: float = CHECK_CPU_S,
        timeout_s: float = CHECK_TIMEOUT_S,
    ) -> None:
        self._vocab_size = vocab_size
        self._control_tokens = dict(control_tokens)
        self._cpu_s = cpu_s
        self._timeout_s = timeout_s
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._trials: dict[bytes, _Trial] = {}
        self._lock = threading.RLock()  # cancelling a trial tells of its end at once
        self._threads = ThreadPoolExecutor(_NUM_PROCESSES, thread_name_prefix="grammars")
        self._idle: list[CheckWorker] = []
        self._close = weakref.finalize(self, _end_all, self._threads, self._idle)

    def check(self, grammar: str, tenant: str = "") -> Future[CheckResult]:
        """Return what becomes of a grammar. Whoever does not want to know any more cancels that.

        Args:
            grammar: as `grammar_of` returns it.
            tenant: who asks; "" is nobody in particular.

        The result raises EngineUnavailable if the grammar could not be tried.

        Raises:
            Overloaded: too many grammars are being tried, of this tenant or in all.
        """
        name = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        answer: Future[CheckResult] = Future()
        with self._lock:
            known = self._recall(name)
            if known is not None:
                answer.set_result(known)
                return answer
            trial = self._trials.get(name)
            if trial is None:
                self._admit(tenant)
                trial = self._trials[name] = _Trial(tenant, self._threads.submit(self._try, grammar))
                trial.work.add_done_callback(partial(self._tell, name, trial))
            trial.asked.append(answer)
        answer.add_done_callback(partial(self._leave, trial))
        return answer

    def close(self) -> None:
        """End the processes."""
        self._close()

    def _recall(self, name: bytes) -> CheckResult | None:
        known = self._known.get(name)
        if known is None:
            return None
        if known.until_s < time.monotonic():
            del self._known[name]
            return None
        self._known.move_to_end(name)
        return known.result

    def _admit(self, tenant: str) -> None:
        """Raise Overloaded if a tenant may not have another grammar tried now."""
        own = sum(trial.tenant == tenant for trial in self._trials.values())
        if tenant and own >= MAX_TRIALS_OF_TENANT:
            message = f"{own} new grammars or schemas of this key are being tried, the most at a time; try again soon"
            raise Overloaded(message)
        if len(self._trials) >= MAX_TRIALS:
            message = f"{len(self._trials)} new grammars or schemas are being tried, the most at a time; try again soon"
            raise Overloaded(message)

    def _leave(self, trial: _Trial, answer: Future[CheckResult]) -> None:
        """Take a trial that has not begun out of the queue when nobody waits for it any more."""
        if answer.cancelled():
            with self._lock:
                if all(other.cancelled() for other in trial.asked):
                    trial.work.cancel()

    def _tell(self, name: bytes, trial: _Trial, work: Future[_Known]) -> None:
        """Remember what came of a trial, and tell everyone who waits for it."""
        error = EngineUnavailable("the model is being unloaded; ask again") if work.cancelled() else work.exception()
        with self._lock:
            del self._trials[name]
            if error is None:
                self._known[name] = work.result()
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
        for answer in trial.asked:
            if not answer.set_running_or_notify_cancel():
                continue
            if error is None:
                answer.set_result(work.result().result)
            else:
                answer.set_exception(error)

    def _try(self, grammar: str) -> _Known:
        job = CheckJob(
            grammar=grammar,
            vocab_size=self._vocab_size,
            control_tokens=self._control_tokens,
            cpu_s=self._cpu_s,
        )
        with self._lock:
            used = self._idle.pop() if self._idle else None
        if used is not None:
            try:
                return self._run(used, job)
            except WorkerDied:
                pass  # while it was idle, or of what earlier grammars have left in its memory
        try:
            return self._run(_started(), job)
        except WorkerDied:
            return _refused("it takes too much memory to prepare; make it simpler")

    def _run(self, worker: CheckWorker, job: CheckJob) -> _Known:
        try:
            result = worker.run(job, self._timeout_s)
        except OutOfTime:
            return _refused(f"it takes more than {self._cpu_s:g} s to prepare; make it simpler")
        except TimeoutError as error:
            message = f"the machine is too busy: no grammar could be tried within {self._timeout_s:g} s; ask again"
            raise EngineUnavailable(message) from error
        with self._lock:
            if self._close.alive:
                self._idle.append(worker)
                return _Known(result)
        worker.end()
        return _Known(result)


def _started() -> CheckWorker:
    try:
        return CheckWorker()
    except (OSError, EOFError) as error:
        message = f"the process that tries grammars did not start ({type(error).__name__}); ask again"
        raise EngineUnavailable(message) from error


def _refused(error: str) -> _Known:
    """Return a refusal that the grammar may not deserve, so that it is not for ever."""
    return _Known(CheckResult(error=error), time.monotonic() + FAILURE_KNOWN_S)


def _end_all(threads: ThreadPoolExecutor, workers: list[CheckWorker]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    while workers:
        workers.pop().end()
