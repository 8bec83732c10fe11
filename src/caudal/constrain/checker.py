"""Tries grammars in processes that can be killed.

llguidance has limits of its own, but some grammars still take it for ever, such as the intersection of twenty
patterns, and none of its calls can be interrupted. So nothing reaches an engine that was not tried here first.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from caudal.constrain.check_process import LENGTH, CheckJob, CheckResult
from caudal.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECK_TIMEOUT_S = 3.0
MAX_KNOWN = 512
_NUM_PROCESSES = 2
_START_TIMEOUT_S = 30.0


class GrammarChecker:
    """Knows which grammars can be used with one vocabulary.

    Threads wait for processes that do the work, both begun when they are first needed. Results are remembered.

    Args:
        vocab_size: number of token ids.
        control_tokens: the vocabulary's control tokens, text to id.
        timeout_s: a grammar that takes longer is refused.
    """

    def __init__(
        self, vocab_size: int, control_tokens: Mapping[str, int], *, timeout_s: float = CHECK_TIMEOUT_S
    ) -> None:
        self._vocab_size = vocab_size
        self._control_tokens = dict(control_tokens)
        self._timeout_s = timeout_s
        self._known: OrderedDict[bytes, CheckResult] = OrderedDict()
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(_NUM_PROCESSES, thread_name_prefix="grammars")
        self._idle: list[_Process] = []
        self._close = weakref.finalize(self, _end_all, self._workers, self._idle)

    def check(self, grammar: str) -> Future[CheckResult]:
        """Return what becomes of a grammar. The result raises EngineUnavailable if it could not be tried."""
        name = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                done: Future[CheckResult] = Future()
                done.set_result(known)
                return done
        return self._workers.submit(self._try, name, grammar)

    def close(self) -> None:
        """End the processes."""
        self._close()

    def _try(self, name: bytes, grammar: str) -> CheckResult:
        job = CheckJob(grammar=grammar, vocab_size=self._vocab_size, control_tokens=self._control_tokens)
        with self._lock:
            process = self._idle.pop() if self._idle else None
        try:
            process = process or _Process()
        except (OSError, TimeoutError, EOFError) as error:
            message = f"the process that tries grammars did not start ({type(error).__name__}); ask again"
            raise EngineUnavailable(message) from error
        result = process.run(msgspec.msgpack.encode(job), self._timeout_s)
        with self._lock:
            if result is None:
                result = CheckResult(
                    error=f"it takes more than {self._timeout_s:g} s, or too much memory, to prepare; make it simpler"
                )
            else:
                self._idle.append(process)
            self._known[name] = result
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return result


class _Process:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "caudal.constrain.check_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._read_frame(time.monotonic() + _START_TIMEOUT_S)

    def run(self, payload: bytes, timeout_s: float) -> CheckResult | None:
        """Return what the process says, or None when it is too late or dead; then it is gone."""
        due_s = time.monotonic() + timeout_s
        try:
            _write(self._in, LENGTH.pack(len(payload)) + payload)
            return msgspec.msgpack.decode(self._read_frame(due_s), type=CheckResult)
        except (OSError, TimeoutError, EOFError):
            self.end()
            return None

    def _read_frame(self, due_s: float) -> bytes:
        (length,) = LENGTH.unpack(_read(self._out, LENGTH.size, due_s))
        return _read(self._out, int(length), due_s)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(descriptor: int, num_bytes: int, due_s: float) -> bytes:
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(data) < num_bytes:
            if not selector.select(max(0.0, due_s - time.monotonic())):
                raise TimeoutError
            more = os.read(descriptor, num_bytes - len(data))
            if not more:
                raise EOFError
            data += more
    return data


def _end_all(workers: ThreadPoolExecutor, processes: list[_Process]) -> None:
    workers.shutdown(wait=False, cancel_futures=True)
    while processes:
        processes.pop().end()
