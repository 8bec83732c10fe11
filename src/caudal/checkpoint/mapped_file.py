"""Maps files read-only, and tells one version of a file from another."""

from __future__ import annotations

import hashlib
import mmap
import stat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from caudal.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class FileStamp(NamedTuple):
    """Where a file is and when it last changed."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int


class Mapped(Protocol):
    """What lies in a mapped file."""

    @property
    def mapping(self) -> mmap.mmap | None:
        """The file, if it is mapped."""

    @property
    def start(self) -> int:
        """Where it begins in the file."""


def identity_of(stamps: Sequence[FileStamp], parts: Iterable[Mapped]) -> str:
    """Return a digest of what tells files from others: places, sizes, times of change, and all before the first part.

    Args:
        stamps: of all files.
        parts: all that lies behind the files' headers.
    """
    digest = hashlib.blake2b(repr(tuple(stamps)).encode(), digest_size=16)
    starts: dict[int, tuple[mmap.mmap, int]] = {}
    for part in parts:
        if part.mapping is not None:
            known = starts.get(id(part.mapping), (part.mapping, part.start))
            starts[id(part.mapping)] = (part.mapping, min(known[1], part.start))
    for mapping, start in starts.values():
        digest.update(memoryview(mapping)[:start])
    return digest.hexdigest()


def file_stamp(path: Path) -> FileStamp:
    """Return a file's stamp; of one that cannot be there, zeros, for whoever opens it says why.

    Taken before the file is opened: if it is replaced in between, its content gets an older file's stamp, which no
    later look will find, and never the other way round.
    """
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return FileStamp(str(path), 0, 0, 0)
    return FileStamp(str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def map_file(path: Path, expected: str, min_bytes: int) -> mmap.mmap:
    """Map a regular file, read-only.

    Args:
        path: of the file.
        expected: what kind of file it should be, for messages.
        min_bytes: the smallest such file has more.

    Raises:
        CheckpointError: it is no file, or too small, or cannot be read.
    """
    try:
        # Ask before opening: opening a pipe would wait for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "no regular file"
            fact = f"this is {kind}; expected {expected}"
            raise CheckpointError(fact, path=path)
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < min_bytes:
                fact = f"the file has {size} bytes, too few for {expected}. Download it again"
                raise CheckpointError(fact, path=path, offset=size)
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fact = f"cannot open the file: {reason}"
        raise CheckpointError(fact, path=path) from error
