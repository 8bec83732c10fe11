"""A process that tries grammars, seen from the one that asks it: see `check_process` for its other side."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress

import msgspec

from caudal.constrain.check_process import LENGTH, CheckJob, CheckResult

_START_TIMEOUT_S = 30.0
_EXIT_GRACE_S = 1.0


class OutOfTime(Exception):
    """The grammar used up its processor time, whatever else the machine had to do."""


class WorkerDied(Exception):
    """The process ended: it ran out of memory, it crashed, or somebody killed it, perhaps long ago."""


class CheckWorker:
    """One process, used by one thread at a time.

    Raises:
        OSError, EOFError: it did not start.
    """

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
        try:
            self._read_frame(time.monotonic() + _START_TIMEOUT_S)
        except BaseException:
            self.end()
            raise

    def run(self, job: CheckJob, timeout_s: float) -> CheckResult:
        """Return what the process says. Whatever this raises, the process is gone then.

        Args:
            job: the grammar.
            timeout_s: how long to wait, whatever the reason.

        Raises:
            OutOfTime: the grammar took more than the job's processor time.
            TimeoutError: no answer came in time.
            WorkerDied: the process did, of the grammar or of something else.
        """
        due_s = time.monotonic() + timeout_s
        try:
            payload = msgspec.msgpack.encode(job)
            _write(self._in, LENGTH.pack(len(payload)) + payload)
            return msgspec.msgpack.decode(self._read_frame(due_s), type=CheckResult)
        except TimeoutError:
            self.end()
            raise
        except (OSError, EOFError) as error:
            if self._exit_code() == -signal.SIGPROF:
                raise OutOfTime from error
            raise WorkerDied from error
        except BaseException:
            self.end()
            raise

    def _read_frame(self, due_s: float) -> bytes:
        (length,) = LENGTH.unpack(_read(self._out, LENGTH.size, due_s))
        return _read(self._out, int(length), due_s)

    def _exit_code(self) -> int:
        """Return how a process that has closed its end has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_GRACE_S)
        self.end()
        return self._process.returncode

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
