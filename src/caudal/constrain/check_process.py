"""Tries grammars, one after the other: `python -m caudal.constrain.check_process`, started by `checker`.

Frames on stdin and stdout: a u32 length (little endian), then msgpack. The process may be killed at any time.
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO

import msgspec

MAX_JOB_CPU_S = 30
LENGTH = struct.Struct("<I")


class CheckJob(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar to try, and the vocabulary's control tokens, text to id."""

    grammar: str
    vocab_size: int
    control_tokens: dict[str, int]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The finished grammar, or why it cannot be used."""

    grammar: str = ""
    error: str | None = None


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next payload, or None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return stream.read(int(length))


def write_frame(stream: BinaryIO, payload: bytes) -> None:
    """Write a payload."""
    stream.write(LENGTH.pack(len(payload)) + payload)
    stream.flush()


def _limit_memory() -> None:
    try:
        import resource  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return
    from caudal.constrain.limits import MAX_CHECK_BYTES  # noqa: PLC0415 - imports llguidance

    resource.setrlimit(resource.RLIMIT_AS, (MAX_CHECK_BYTES, MAX_CHECK_BYTES))


def _limit_time() -> None:
    """End this process if one grammar takes much too long and nobody is left to kill it."""
    try:
        import resource  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime) + MAX_JOB_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def main() -> None:
    """Answer jobs until stdin ends."""
    from caudal.constrain.finish import byte_table, try_grammar  # noqa: PLC0415 - imports llguidance
    from caudal.constrain.matcher import GrammarError  # noqa: PLC0415

    _limit_memory()
    decode = msgspec.msgpack.Decoder(CheckJob).decode
    write_frame(sys.stdout.buffer, b"")  # ready
    table, known = None, None
    while (payload := read_frame(sys.stdin.buffer)) is not None:
        _limit_time()
        job = decode(payload)
        try:
            vocabulary = (job.vocab_size, job.control_tokens)
            if table is None or known != vocabulary:
                table, known = byte_table(*vocabulary), vocabulary
            result = CheckResult(grammar=try_grammar(job.grammar, table))
        except GrammarError as error:
            result = CheckResult(error=str(error))
        except MemoryError:
            result = CheckResult(error="it takes too much memory")
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(result))


if __name__ == "__main__":
    main()
