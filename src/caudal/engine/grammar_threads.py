"""Threads for work with grammars, which runs beside the forward pass and may, for hostile grammars, never end."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Result = TypeVar("Result")
MAX_LOST = 4
_HELP_AFTER = 1 / 8


class Job(Generic[Result]):
    """Something that a thread does. Exceptions of it are kept for whoever asks."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._done = threading.Event()
        self._result: Result | None = None
        self.error: BaseException | None = None
        self.has_begun = False
        self.is_given_up = False
        self.is_replaced = False

    def run(self) -> None:
        """Do it; for the thread."""
        self.has_begun = True
        if not self.is_given_up:
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001 - a panic in native code is no Exception
                self.error = error
        self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._done.wait(timeout_s)

    def result(self) -> Result:
        """Return what the work returned, or raise what it raised. It must have ended."""
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]  # set when there is no error


class GrammarThreads:
    """A few threads, begun when there is work. One that does not come back is replaced.

    Args:
        num_threads: that work at the same time.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._num_started = 0
        self._lost: list[Job[object]] = []
        weakref.finalize(self, _end_threads, self._jobs, num_threads + MAX_LOST)

    @property
    def is_overrun(self) -> bool:
        """Whether so many threads never came back that no more grammars should be begun."""
        self._lost = [job for job in self._lost if not job.is_done]
        return len(self._lost) >= MAX_LOST

    def submit(self, work: Callable[[], Result]) -> Job[Result]:
        """Give work to a thread."""
        if self._num_started < self._num_threads:
            self._start()
        job = Job(work)
        self._jobs.put(job)  # type: ignore[arg-type]  # a Job of one result is a Job of an object
        return job

    def call(self, work: Callable[[], Result], timeout_s: float) -> Result:
        """Return what the work returns. Raises TimeoutError if it takes longer, and then it is given up."""
        job = self.submit(work)
        if not job.wait(timeout_s):
            self.give_up(job)
            raise TimeoutError
        return job.result()

    def wait_all(self, jobs: Sequence[Job[Result]], timeout_s: float) -> bool:
        """Wait for jobs, so long for all of them together; return whether all ended.

        Those that did not are given up. Jobs that are still behind others after an eighth of the time get a thread
        each, so that no job is late but by its own doing.
        """
        start_s = time.monotonic()
        if _all_end(jobs, start_s + timeout_s * _HELP_AFTER):
            return True
        for job in jobs:
            if not job.has_begun:
                threading.Thread(target=_help, args=(self._jobs,), name="grammars", daemon=True).start()
        if _all_end(jobs, start_s + timeout_s):
            return True
        for job in jobs:
            if not job.is_done:
                self.give_up(job)
        return False

    def give_up(self, job: Job[Result]) -> None:
        """Expect nothing of a job any more. Its thread leaves if it ever ends, and another takes its place."""
        job.is_given_up = True
        if job.has_begun:
            self._lost.append(job)  # type: ignore[arg-type]  # as above
            if not job.is_replaced:
                job.is_replaced = True
                self._start()

    def _start(self) -> None:
        self._num_started += 1
        threading.Thread(target=_run_jobs, args=(self._jobs,), name="grammars", daemon=True).start()


def _run_jobs(jobs: queue.SimpleQueue[Job[object] | None]) -> None:
    """Do jobs until there is a None, or one was given up meanwhile."""
    while (job := jobs.get()) is not None:
        job.run()
        if job.is_replaced:
            return


def _help(jobs: queue.SimpleQueue[Job[object] | None]) -> None:
    """Do one job, if one still waits."""
    try:
        job = jobs.get_nowait()
    except queue.Empty:
        return
    if job is None:
        jobs.put(None)  # which is for one of the threads that stay
        return
    job.is_replaced = True
    job.run()


def _all_end(jobs: Sequence[Job[Result]], due_s: float) -> bool:
    """Wait until then at most; return whether all jobs ended."""
    return all(job.wait(max(0.0, due_s - time.monotonic())) for job in jobs)


def _end_threads(jobs: queue.SimpleQueue[Job[object] | None], num_threads: int) -> None:
    for _ in range(num_threads):
        jobs.put(None)
