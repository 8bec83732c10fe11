"""A folder of models to which links are added and from which files are taken, never anywhere else.

Folders are opened one by one and their links not followed, and everything is done relative to the open folder: what
somebody puts in the way meanwhile cannot lead out of it. Source: openat(2), symlinkat(2), linkat(2).
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from caudal.errors import LibraryError
from caudal.hub.library_names import checked_name
from caudal.hub.resolve import SHARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    MakeLink = Callable[[str, int], bool]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_FOLLOWED = (errno.ELOOP, errno.ENOTDIR)
_NO_SECOND_NAME = (errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP)


def link_target(path: Path) -> Path | None:
    """Return what a link leads to, one step on, as an absolute path; None if it is no link."""
    if not path.is_symlink():
        return None
    target = path.parent / path.readlink()
    return target.parent.resolve() / target.name


class LinkedFolder:
    """See the module. A name that library_names does not let pass is a LibraryError here too.

    Args:
        path: of the folder; it may be a link itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def links(self) -> list[Path]:
        """Return the model files in it, at any depth, that are links."""
        return [path for path in self.path.rglob("*.gguf") if path.is_symlink()]

    def add(self, name: str, files: Sequence[Path]) -> None:
        """Give a model whose files lie elsewhere a name here, unless it has it already.

        Args:
            name: what it is listed as.
            files: absolute paths: one, or all shards in order.

        Raises:
            LibraryError: the name is taken, or the disk refuses.
        """
        with self._told():
            self._put(name, [(_shard_end(file), partial(_symlink, file)) for file in files])

    def copy(self, files: Sequence[Path], name: str) -> None:
        """Give a model that is here a further name: a link to where its own leads, or a second name of its files.

        Raises:
            LibraryError: the name is taken, the model has gone, or the disk refuses.
        """
        parts = self._parts(files[0].parent)
        with self._told(), self._opened(parts) as source:
            self._put(name, [(_shard_end(file), partial(_link_again, file, source)) for file in files])

    def remove(self, files: Sequence[Path]) -> None:
        """Take a model's files or links away, and folders that are empty then.

        Raises:
            LibraryError: the model has gone, or the disk refuses.
        """
        parts = self._parts(files[0].parent)
        with self._told(), self._opened(parts) as folder:
            for file in files:  # the first shard is what is listed: without it nobody sees the others
                os.unlink(file.name, dir_fd=folder)
        self._sweep(parts)

    def _put(self, name: str, links: Sequence[tuple[str, MakeLink]]) -> None:
        *parts, base = checked_name(name).split("/")
        made: list[str] = []
        try:
            with self._opened(parts, create=True) as folder:
                _clear(base, folder)
                try:
                    for end, make in reversed(links):  # the first shard last
                        entry = f"{base}{end}.gguf"
                        if make(entry, folder):
                            made.append(entry)
                except OSError:
                    for entry in made:
                        with suppress(OSError):
                            os.unlink(entry, dir_fd=folder)
                    raise
        except OSError:
            self._sweep(parts)
            raise

    @contextmanager
    def _opened(self, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """Open a folder in this one, by the names on the way to it."""
        folder = os.open(self.path, _FOLDER)
        try:
            for part in parts:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _sweep(self, parts: Sequence[str]) -> None:
        for count in range(len(parts), 0, -1):
            try:
                with self._opened(parts[: count - 1]) as folder:
                    os.rmdir(parts[count - 1], dir_fd=folder)
            except OSError:  # it is not empty, or not there
                return

    def _parts(self, folder: Path) -> tuple[str, ...]:
        parts = folder.relative_to(self.path).parts if folder.is_relative_to(self.path) else ("..",)
        if ".." in parts:
            message = "the model's file lies outside of --models-dir; clients may only change what is in it"
            raise LibraryError(message, "fixed")
        return parts

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in a LibraryError what the disk refuses."""
        try:
            yield
        except FileExistsError as error:
            message = "there is a file of that name in --models-dir already"
            raise LibraryError(message, "exists") from error
        except FileNotFoundError as error:
            message = "the model's file is not in --models-dir any more"
            raise LibraryError(message, "unknown") from error
        except OSError as error:
            raise _explained(error) from error


def _explained(error: OSError) -> LibraryError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return LibraryError(f"the disk of --models-dir is full: {reason}; make room and try again", "full")
    if error.errno in _NOT_FOLLOWED:
        return LibraryError(
            "a link or a file in --models-dir is where a folder must be; links are not followed", "disk"
        )
    if error.errno in _NO_SECOND_NAME:
        return LibraryError(f"the file system of --models-dir gives a file no second name: {reason}", "disk")
    return LibraryError(f"cannot change --models-dir: {reason}; let the server's user write there", "disk")


def _shard_end(file: Path) -> str:
    match = SHARD.search(file.stem)
    return match[0] if match else ""


def _symlink(file: Path, entry: str, folder: int) -> bool:
    """Make a link; return False if it was there."""
    try:
        os.symlink(file, entry, dir_fd=folder)
    except FileExistsError:
        with suppress(OSError):  # it is no link
            if os.readlink(entry, dir_fd=folder) == str(file):
                return False
        raise
    return True


def _link_again(file: Path, source: int, entry: str, folder: int) -> bool:
    """Make what _put asks for of a file in an open folder."""
    target = link_target(file)
    if target is not None:
        return _symlink(target, entry, folder)
    # A symbolic link would dangle when the model is deleted under its first name.
    os.link(file.name, entry, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    return True


def _clear(base: str, folder: int) -> None:
    """Take away links of a model that lead nowhere: its files were deleted where they were."""
    ours = re.compile(rf"{re.escape(base)}(?:-[0-9]{{5}}-of-[0-9]{{5}})?\.gguf")
    for entry in filter(ours.fullmatch, os.listdir(folder)):
        try:
            os.stat(entry, dir_fd=folder)
        except FileNotFoundError:
            with suppress(FileNotFoundError):
                os.unlink(entry, dir_fd=folder)
