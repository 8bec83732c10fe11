"""PackCache: packed weights kept in a file, so that the next start maps them instead of packing them again.

One image for each model file, in a folder of such images. Little endian:

    8 bytes    magic
    u64        bytes of the table
    32 bytes   BLAKE2b of the table
    table      msgpack: layout version, the model's identity, the file's size, and where each matrix is
    matrices   each at a multiple of 4096, with room behind it that kernels may read

An image is never changed: a new one takes its place by renaming. One that is of another model or another layout, or
damaged, is not used, and made anew. Its table is checked whole, and of each matrix the first and the last page; all
else is trusted as the model file's own tensors are, which no program reads twice either.

A mapped file lies in small pages, from which kernels read slower than from huge ones. So while the model is already
answering, a thread moves the weights into huge pages, at the same addresses.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from caudal import _native

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MAGIC = b"CaudalP1"
ALIGN = 4096
SAMPLE_BYTES = 4096
_HEAD = struct.Struct("<8sQ32s")
_STALE_TEMPORARY_S = 3600


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A matrix in an image; `sample` is the digest of its first and last bytes."""

    name: str
    format: str
    rows: int
    cols: int
    start: int
    num_bytes: int
    sample: bytes


class _Table(msgspec.Struct, frozen=True):
    layout: int
    model: str
    file_bytes: int
    entries: list[_Entry]


class _UnusableImage(Exception):
    """An image that is there and is not to be used, and why."""


class PackCache:
    """The image of one model.

    Args:
        folder: of images; made when one is written.
        model: the model file's identity; another one makes an image useless.
        label: begins the image's file name.

    Attributes:
        mapped_bytes: of matrices that are read from the image.
    """

    def __init__(self, folder: Path, model: str, label: str) -> None:
        self._model = model
        # By name and not by identity: a model that is downloaded again replaces its image.
        name = hashlib.blake2b(label.encode(), digest_size=8).hexdigest()
        self.path = folder / f"{Path(label).stem}-{name}.pack"
        self.mapped_bytes = 0
        self._placed: dict[str, _native.PackedMatrix] = {}
        self._is_complete = True
        self._image: _native.WeightImage | None = None
        self._bytes = np.zeros(0, np.uint8)
        self._entries: dict[str, _Entry] = {}
        try:
            self._open()
        except FileNotFoundError:
            self._is_complete = False
        except (_UnusableImage, OSError, ValueError, MemoryError) as error:
            logger.warning("the packed weights in %s are not used and will be made anew: %s", self.path, error)
            self._is_complete = False

    def find(self, name: str, format_name: str, rows: int, cols: int) -> _native.PackedMatrix | None:
        """Return a matrix of the image, or None if it is not there as it should be."""
        entry = self._entries.get(name)
        if entry is None or (entry.format, entry.rows, entry.cols) != (format_name, rows, cols):
            self._is_complete = False
            return None
        data = self._bytes[entry.start : entry.start + entry.num_bytes + _native.PACK_SLACK]
        try:
            matrix = _native.PackedMatrix.on(format_name, rows, cols, data)
        except ValueError as error:
            logger.warning("%s in %s: %s", name, self.path, error)
            self._is_complete = False
            return None
        self.mapped_bytes += entry.num_bytes
        self.keep(name, matrix)
        return matrix

    def keep(self, name: str, matrix: _native.PackedMatrix) -> None:
        """Note a matrix for the image."""
        self._placed[name] = matrix

    def finish(self) -> None:
        """Write the image, unless all matrices came from it; move what did into huge pages, in the background.

        A failure is a warning: the model runs all the same.
        """
        if not self._is_complete:
            start_s = time.perf_counter()
            try:
                num_bytes = self._write()
            except OSError as error:
                logger.warning("the packed weights cannot be kept in %s: %s", self.path, error.strerror or error)
            else:
                seconds = time.perf_counter() - start_s
                logger.info("kept %d MB of packed weights in %s (%.1f s)", num_bytes >> 20, self.path, seconds)
        self._placed.clear()
        if self._image is not None and self.mapped_bytes:
            threading.Thread(target=self._image.settle, name="settle weights", daemon=True).start()

    def _open(self) -> None:
        """Map the image and check its table.

        Raises:
            OSError: it cannot be read.
            _UnusableImage: it is of another model or layout, or damaged.
        """
        with self.path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            if file_bytes < _HEAD.size:
                message = f"it has {file_bytes} bytes"
                raise _UnusableImage(message)
            image = _native.WeightImage(file.fileno(), file_bytes)
        data = image.data
        magic, table_bytes, digest = _HEAD.unpack(data[: _HEAD.size].tobytes())
        if magic != MAGIC:
            message = f"it begins with {magic!r}; expected {MAGIC!r}"
            raise _UnusableImage(message)
        payload = data[_HEAD.size : _HEAD.size + table_bytes].tobytes()
        if hashlib.blake2b(payload, digest_size=32).digest() != digest:
            message = "its table is damaged"
            raise _UnusableImage(message)
        try:
            table = msgspec.msgpack.decode(payload, type=_Table)
        except msgspec.MsgspecError as error:
            raise _UnusableImage(str(error)) from error
        self._check(table, data)
        self._image = image
        self._bytes = data
        self._entries = {entry.name: entry for entry in table.entries}

    def _check(self, table: _Table, data: NDArray[np.uint8]) -> None:
        if table.layout != _native.PACK_LAYOUT_VERSION:
            message = f"their layout is {table.layout}; this program's is {_native.PACK_LAYOUT_VERSION}"
            raise _UnusableImage(message)
        if table.model != self._model:
            message = "they are of another model file, or it has changed since"
            raise _UnusableImage(message)
        if table.file_bytes != len(data):
            message = f"the file has {len(data)} bytes; expected {table.file_bytes}"
            raise _UnusableImage(message)
        for entry in table.entries:  # that each is whole and inside the file is checked where it is used
            if _sample(data[entry.start : entry.start + entry.num_bytes]) != entry.sample:
                message = f"{entry.name} is damaged"
                raise _UnusableImage(message)

    def _write(self) -> int:
        """Write the image beside its place and move it there; return its bytes."""
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{self.path.name}.*.part"):
            if time.time() - leftover.stat().st_mtime > _STALE_TEMPORARY_S:
                leftover.unlink(missing_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f"{self.path.name}.", suffix=".part", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                num_bytes = self._write_to(file)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return num_bytes

    def _write_to(self, file: BinaryIO) -> int:
        # The table's own size moves the matrices, so it is encoded with starts from 0 first.
        table = self._table(0)
        first = _up(_HEAD.size + len(msgspec.msgpack.encode(table)) + 16 * len(self._placed) + ALIGN)
        table = self._table(first)
        payload = msgspec.msgpack.encode(table)
        file.write(_HEAD.pack(MAGIC, len(payload), hashlib.blake2b(payload, digest_size=32).digest()))
        file.write(payload)
        for entry in table.entries:
            file.write(bytes(entry.start - file.tell()))
            file.write(self._placed[entry.name].data.data)
        file.write(bytes(table.file_bytes - file.tell()))
        return table.file_bytes

    def _table(self, first: int) -> _Table:
        entries = []
        for name, matrix in self._placed.items():
            entries.append(
                _Entry(name, matrix.format, matrix.rows, matrix.cols, first, matrix.nbytes, _sample(matrix.data))
            )
            first = _up(first + matrix.nbytes + _native.PACK_SLACK)
        return _Table(_native.PACK_LAYOUT_VERSION, self._model, first, entries)


def _up(position: int) -> int:
    return -(-position // ALIGN) * ALIGN


def _sample(data: NDArray[np.uint8]) -> bytes:
    """Return a digest of the first and the last bytes."""
    digest = hashlib.blake2b(data[:SAMPLE_BYTES].tobytes(), digest_size=16)
    digest.update(data[-SAMPLE_BYTES:].tobytes())
    return digest.digest()
