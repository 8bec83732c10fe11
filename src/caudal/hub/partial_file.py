"""Brings one file onto this disk: resumed where an earlier attempt ended, checked, and put in place at once.

What has arrived lies beside the file as NAME.incomplete, locked by whoever writes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from caudal.errors import CaudalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    Progress = Callable[[int, int], None]

CHUNK_BYTES = 1 << 20
NUM_RETRIES = 5
_FIRST_WAIT_S = 1.0
_SHA256_DIGITS = 64


class DownloadError(CaudalError):
    """A file could not be downloaded."""


class DownloadCutShort(Exception):
    """The connection ended early; what came is good. Another attempt may go on from there."""


class Source(Protocol):
    """Where the bytes come from."""

    def read_from(self, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Give the offset at which the bytes really begin, `offset` or 0, and the bytes.

        Raises:
            DownloadCutShort: the connection failed, here or while the bytes are read.
            DownloadError: the server refuses.
        """


@dataclass(frozen=True, kw_only=True)
class WantedFile:
    """What a file must be.

    Attributes:
        name: for messages.
        num_bytes: its size.
        digest: its SHA-256 as 64 hex digits, or the SHA-1 that git gives it as 40.
    """

    name: str
    num_bytes: int
    digest: str


def new_hash(wanted: WantedFile) -> hashlib._Hash:
    """Return the empty hash of which `digest` is the result."""
    if len(wanted.digest) == _SHA256_DIGITS:
        return hashlib.sha256()
    # Git hashes a header first; see git-hash-object(1). It is a name here, and no proof against an attacker.
    return hashlib.sha1(b"blob %d\0" % wanted.num_bytes, usedforsecurity=False)


def download(
    wanted: WantedFile,
    source: Source,
    target: Path,
    progress: Progress | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Bring a file to `target`, unless it is there; return whether it had to be brought.

    Args:
        wanted: what it must be.
        source: where it comes from.
        target: where it goes; its folder must exist.
        progress: told the bytes that are here, and all; what it raises ends the download, which can be resumed.
        wait: waits for so many seconds before another attempt.

    Raises:
        DownloadError: the server refuses, the connection fails again and again, the bytes are wrong, the disk is full.
    """
    partial = target.with_name(f"{target.name}.incomplete")
    try:
        with _locked(partial, target) as file:
            if file is None:
                return False
            _fill(file, wanted, source, progress or (lambda _done, _all: None), wait)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(target)
    except OSError as error:
        raise _disk_error(error, target) from error
    return True


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[BinaryIO | None]:
    """Give the incomplete file, when nobody else writes it; None if the whole one is there."""
    while True:
        if target.exists():
            yield None
            return
        with partial.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had the lock may have finished, and then this is no longer the incomplete file.
            if not partial.exists() or not os.path.samestat(os.fstat(file.fileno()), partial.stat()):
                continue
            yield file
            return


def _fill(
    file: BinaryIO, wanted: WantedFile, source: Source, progress: Progress, wait: Callable[[float], None]
) -> None:
    """Append what is missing, and check the whole."""
    done, digest = _what_is_there(file, wanted)
    _check_space(file, wanted.num_bytes - done)
    progress(done, wanted.num_bytes)
    retries = 0
    while done < wanted.num_bytes:
        before = done
        try:
            with source.read_from(done) as (start, chunks):
                if start != done:  # the server cannot resume
                    file.truncate(0)
                    done, digest = 0, new_hash(wanted)
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    progress(min(done, wanted.num_bytes), wanted.num_bytes)
                    if done > wanted.num_bytes:
                        break
            if done < wanted.num_bytes:
                message = f"it ended after {done} bytes"
                raise DownloadCutShort(message)  # noqa: TRY301 - the same as a connection that ends
        except DownloadCutShort as error:
            retries = 0 if done > before else retries + 1
            if retries > NUM_RETRIES:
                message = (
                    f"{wanted.name}: the connection failed {retries} times ({error}); {done} of {wanted.num_bytes} "
                    "bytes are here, and the next attempt goes on from them"
                )
                raise DownloadError(message) from error
            file.flush()
            wait(_FIRST_WAIT_S * 2**retries)
            progress(done, wanted.num_bytes)  # nothing is new, but whoever is told may want it to end
    if done != wanted.num_bytes or digest.hexdigest() != wanted.digest:
        file.truncate(0)
        found = f"{done} bytes with {digest.name} {digest.hexdigest()}"
        message = (
            f"{wanted.name}: the server sent {found}; expected {wanted.num_bytes} with {wanted.digest}. What it sent "
            "is thrown away; try again, and look for a proxy that changes downloads"
        )
        raise DownloadError(message)


def _what_is_there(file: BinaryIO, wanted: WantedFile) -> tuple[int, hashlib._Hash]:
    """Return the bytes that an earlier attempt left, and their hash; more than all is thrown away."""
    digest = new_hash(wanted)
    file.seek(0, os.SEEK_END)
    if file.tell() > wanted.num_bytes:
        file.truncate(0)
    file.seek(0)
    done = 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
    return done, digest


def _check_space(file: BinaryIO, missing_bytes: int) -> None:
    free = shutil.disk_usage(os.path.dirname(file.name)).free  # noqa: PTH120 - a file's name is a string
    if free < missing_bytes:
        reason = f"{missing_bytes} bytes are to come, and {free} are free"
        raise OSError(errno.ENOSPC, reason)


def _disk_error(error: OSError, target: Path) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"the disk is full, {target.parent}: {error.strerror}; make room, and the next attempt goes on"
    else:
        message = (
            f"cannot write to {target.parent}: {error.strerror or error}; set HF_HUB_CACHE to a folder that you may "
            "write to"
        )
    return DownloadError(message)
