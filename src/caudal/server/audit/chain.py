"""The lines of an audit log and the chain through them. Pure.

A line is a JSON object: `seq` counts from 1, `prev` is the SHA-256 (hex) of the line before, without its newline; that
of the first is 64 zeros. So no line can be changed, left out, added or moved without every later line being wrong.
Only an end that is cut off leaves a whole chain: a Head, kept beside the log, says where it ended.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

GENESIS = "0" * 64


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last line that was written.

    Attributes:
        file: the name of the log's newest file.
        size: its bytes.
        seq: of its last line.
        digest: SHA-256 of that line, which the next one carries.
    """

    file: str = ""
    size: int = 0
    seq: int = 0
    digest: str = GENESIS


class _Link(msgspec.Struct, frozen=True):
    """What a line says of its place."""

    seq: int
    prev: str


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chain is broken.

    Attributes:
        file: the file.
        line: in it, from 1.
        reason: what is wrong there.
    """

    file: str
    line: int
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What verification found.

    Attributes:
        num_lines: lines that are in order.
        first_seq: of the first line; more than 1 if older files were removed.
        last_seq: of the last line in order.
        broken: where the chain breaks first; None if it does not.
    """

    num_lines: int
    first_seq: int
    last_seq: int
    broken: Break | None


def digest_line(line: bytes) -> str:
    """Return the SHA-256 of a line without its newline."""
    return hashlib.sha256(line).hexdigest()


def make_line(head: Head, record: dict[str, Any]) -> tuple[bytes, Head]:
    """Return a record as the line that follows a head, without newline, and the head after it."""
    line = msgspec.json.encode({"seq": head.seq + 1, "prev": head.digest, **record})
    return line, msgspec.structs.replace(head, seq=head.seq + 1, digest=digest_line(line))


def link_of(line: bytes) -> tuple[int, str] | None:
    """Return seq and prev of a line; None if it is none."""
    try:
        link = msgspec.json.decode(line, type=_Link)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return link.seq, link.prev


def verify(lines: Iterable[tuple[str, int, bytes]], head: Head | None) -> Verdict:
    """Follow a chain.

    Args:
        lines: file, number in it, and text of each line, in order.
        head: where the log should end at least; None if nobody knows.
    """
    first_seq = num_lines = last_seq = 0
    before: tuple[str, int, bytes] | None = None
    at_head = head is None or head.seq == 0
    broken = None
    for place in lines:
        file, number, line = place
        link = link_of(line)
        reason = "it is no record: changed, or cut off" if link is None else None
        if link is not None and before is not None:
            reason = _reason(link, last_seq, digest_line(before[2]), link_of(before[2]))
            if reason == _CHANGED:
                broken = Break(file=before[0], line=before[1], reason=reason)
                break
        elif link is not None and link[0] == 1 and link[1] != GENESIS:
            reason = "its prev is not that of a first line: changed"
        if reason is not None or link is None:
            broken = Break(file=file, line=number, reason=reason or "")
            break
        first_seq = first_seq or link[0]
        last_seq = link[0]
        num_lines += 1
        if head is not None and last_seq == head.seq:
            at_head = digest_line(line) == head.digest
            if not at_head:
                broken = Break(file=file, line=number, reason=_CHANGED)
                break
        before = place
    if broken is None and not at_head:
        assert head is not None
        file, number = ("", 0) if before is None else before[:2]
        reason = f"the log ends with seq {last_seq}, but {head.seq} was written: its end is cut off"
        broken = Break(file=file or head.file, line=number, reason=reason)
    return Verdict(num_lines=num_lines, first_seq=first_seq, last_seq=last_seq, broken=broken)


_CHANGED = "its hash is not the one that the next line, or the head, carries: it, or that, was changed"


def _reason(link: tuple[int, str], last_seq: int, digest: str, before: tuple[int, str] | None) -> str | None:
    """Say what is wrong between a line and the one before; None if nothing is."""
    seq, prev = link
    if seq == last_seq + 1:
        return None if prev == digest else _CHANGED
    if seq > last_seq + 1:
        return f"its seq is {seq}, expected {last_seq + 1}: lines before it are missing, or it was moved"
    assert before is not None
    return f"its seq is {seq}, expected {last_seq + 1}: it was moved or repeated"
