"""The files of an audit log: one a day, named audit-YYYY-MM-DD.jsonl, and audit-head.json.

Several processes may write to one log: each batch is written under a lock, and who finds that somebody else has
written goes on from there. A line that was cut off by a crash is taken away, and the next line says so. Lines that are
gone or changed although the head knows them are not covered up: the next line carries the head, not what is there.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.server.audit.chain import Head, Verdict, digest_line, link_of, make_line, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD, LOCK = "audit-head.json", "audit.lock"
FILE_NAME = re.compile(r"audit-(\d{4}-\d\d-\d\d)\.jsonl")


def files_of(state_dir: Path) -> list[Path]:
    """Return the log's files, oldest first. Raises OSError if the directory cannot be read."""
    return sorted(path for path in state_dir.iterdir() if FILE_NAME.fullmatch(path.name))


def lines_of(files: list[Path]) -> Iterator[tuple[str, int, bytes]]:
    """Yield file name, number and text of each line."""
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield path.name, number, line.removesuffix(b"\n")


def read_head(state_dir: Path) -> Head | None:
    """Return the head that was kept; None if there is none, or it cannot be read as one."""
    try:
        return msgspec.json.decode((state_dir / HEAD).read_bytes(), type=Head)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def verify_log(state_dir: Path) -> Verdict:
    """Check the whole log of a state directory. Raises OSError if it cannot be read."""
    with locked(state_dir):
        return verify(lines_of(files_of(state_dir)), read_head(state_dir))


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Keep other writers out."""
    lock = _open(state_dir, LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def append(state_dir: Path, day: str, records: list[dict[str, Any]], *, durable: bool) -> None:
    """Append records to the file of a day, all or none.

    Args:
        state_dir: where.
        day: YYYY-MM-DD.
        records: what the lines say, beside seq and prev.
        durable: wait until the disk has them.

    Raises:
        OSError: the disk is full, read-only or broken; nothing was written.
    """
    with locked(state_dir):
        head, repairs = _where_it_ends(state_dir)
        # A clock that went back must not put a line into an older file than the last one.
        name = max(f"audit-{day}.jsonl", head.file)
        file = _open(state_dir, name, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(file).st_size
            text = bytearray()
            for record in (*repairs, *records):
                line, head = make_line(head, record)
                text += line + b"\n"
            try:
                _write_all(file, bytes(text))
                if durable:
                    os.fsync(file)
                _keep_head(state_dir, msgspec.structs.replace(head, file=name, size=size + len(text)))
            except OSError:
                os.ftruncate(file, size)
                raise
        finally:
            os.close(file)


def remove_older(state_dir: Path, first_day: str) -> list[str]:
    """Remove the files of days before that one, but never the newest file; return their names."""
    old = [path for path in files_of(state_dir)[:-1] if path.name < f"audit-{first_day}.jsonl"]
    for path in old:
        path.unlink()
    return [path.name for path in old]


def _open(state_dir: Path, name: str, flags: int) -> int:
    """Open a file of the log, which only the directory's owner may read, or make it.

    What root makes is given to that owner, whose server must be able to go on with it: SQLite does the same with the
    files that it makes beside a database.
    """
    file = os.open(state_dir / name, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:
        owner = state_dir.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)
    return file


def _write_all(file: int, text: bytes) -> None:
    written = 0
    while written < len(text):
        written += os.write(file, text[written:])


def _keep_head(state_dir: Path, head: Head) -> None:
    new = state_dir / f"{HEAD}.new"
    file = _open(state_dir, new.name, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(file, msgspec.json.encode(head))
    finally:
        os.close(file)
    new.replace(state_dir / HEAD)


def _where_it_ends(state_dir: Path) -> tuple[Head, list[dict[str, Any]]]:
    """Return the end of the log, and what the next lines must say of its repair."""
    head = read_head(state_dir) or Head()
    files = files_of(state_dir)
    if not files or (files[-1].name == head.file and files[-1].stat().st_size == head.size):
        return head, []
    repairs: list[dict[str, Any]] = []
    for path in reversed(files):
        size = path.stat().st_size
        last, end = _last_line(path, size)
        if end < size:
            os.truncate(path, end)
            repairs.append({"event": "recovered", "file": path.name, "discarded_bytes": size - end})
        if last is not None:
            link = link_of(last)
            if link is not None and link[0] > head.seq:
                return Head(file=path.name, size=end, seq=link[0], digest=digest_line(last)), repairs
            break
    # Where lines are gone or changed, the next one carries what was written, and so leaves a gap to be found.
    return head, repairs


def _last_line(path: Path, size: int) -> tuple[bytes | None, int]:
    """Return a file's last whole line, and where it ends."""
    with path.open("rb") as file:
        tail = b""
        start = size
        while start > 0 and tail.count(b"\n") < 2:
            start = max(0, start - 65536)
            file.seek(start)
            tail = file.read(size - start)
    end = start + tail.rfind(b"\n") + 1
    whole = tail[: tail.rfind(b"\n") + 1].removesuffix(b"\n")
    return (whole.rpartition(b"\n")[2] if end > start else None), (end if b"\n" in tail else 0)
