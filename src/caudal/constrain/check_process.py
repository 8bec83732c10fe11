"""Tries grammars, one after the other: `python -m caudal.constrain.check_process`, started by `checker`.

Frames on stdin and stdout: a u32 length (little endian), then msgpack. The process may be killed at any time, and
ends itself where a grammar takes more processor time or memory than it may.
"""

from __future__ import annotations

import signal
import struct
import sys
from typing import BinaryIO

import msgspec

LENGTH = struct.Struct("<I")


class CheckJob(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar to try.

    Attributes:
        grammar: as `output_rule.grammar_of` returns it.
        vocab_size: number of token ids.
        control_tokens: the vocabulary's control tokens, text to id.
        cpu_s: processor time that the grammar may take; the process ends by SIGPROF if it takes more.
    """

    grammar: str
    vocab_size: int
    control_tokens: dict[str, int]
    cpu_s: float


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


def _limit_cpu(seconds: float) -> None:
    """End this process by SIGPROF when it has used so much processor time, from now on; 0 is without a limit.

    It is the kernel that does so: no call of llguidance returns for it, and nobody else need be left.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answer jobs until stdin ends. Whatever else happens, running out of memory above all, ends the process."""
    from caudal.constrain.finish import byte_table, try_grammar  # noqa: PLC0415 - imports llguidance
    from caudal.constrain.matcher import GrammarError  # noqa: PLC0415

    _limit_memory()
    decode = msgspec.msgpack.Decoder(CheckJob).decode
    write_frame(sys.stdout.buffer, b"")  # ready
    table, known = None, None
    while (payload := read_frame(sys.stdin.buffer)) is not None:
        job = decode(payload)
        vocabulary = (job.vocab_size, job.control_tokens)
        if table is None or known != vocabulary:
            table, known = byte_table(*vocabulary), vocabulary
        _limit_cpu(job.cpu_s)
        try:
            result = CheckResult(grammar=try_grammar(job.grammar, table))
        except GrammarError as error:
            result = CheckResult(error=str(error))
        _limit_cpu(0)
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(result))


if __name__ == "__main__":
    main()
