"""Reads the header of one safetensors file and maps its arrays. Trusts nothing.

Source: the safetensors format (https://github.com/huggingface/safetensors, "Format"): a little-endian u64, that many
bytes of JSON, and the arrays' bytes without holes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np

from caudal.checkpoint.mapped_file import map_file
from caudal.errors import CheckpointError

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from numpy.typing import NDArray

MAX_HEADER_BYTES = 100_000_000  # as the format says
MAX_ARRAYS = 1 << 20
MAX_DIMS = 8
_LENGTH_BYTES = 8
_DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array as it lies in a file.

    Attributes:
        dtype: the format's own name: "F32", "BF16", "I32", "F8_E4M3", ...
        shape: row-major.
        data: uint8, read-only; a view of the mapped file.
        mapping: the file.
        start: where `data` begins in it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    mapping: mmap.mmap
    start: int

    @property
    def format(self) -> str:
        """The type, as tensors call it."""
        return self.dtype


def map_safetensors(path: Path) -> dict[str, StoredArray]:
    """Map a file and return its arrays, in the order of their bytes.

    Raises:
        CheckpointError: it is no safetensors file, or truncated, or contradicts itself.
    """
    return _SafetensorsFile(path).arrays()


class _SafetensorsFile:
    """The reading of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mapping = map_file(path, "a .safetensors file", min_bytes=_LENGTH_BYTES + 2)
        self._view = np.frombuffer(self._mapping, np.uint8)

    def arrays(self) -> dict[str, StoredArray]:
        size = int.from_bytes(self._mapping[:_LENGTH_BYTES], "little")
        data_start = _LENGTH_BYTES + size
        if size > MAX_HEADER_BYTES or data_start > len(self._mapping):
            limit = min(MAX_HEADER_BYTES, len(self._mapping) - _LENGTH_BYTES)
            self._fail(f"the header should have {size} bytes; expected at most {limit}{self._guess()}", 0)
        entries = self._header(self._mapping[_LENGTH_BYTES:data_start])
        entries.pop("__metadata__", None)
        if len(entries) > MAX_ARRAYS:
            self._fail(f"the header lists {len(entries)} tensors; expected at most {MAX_ARRAYS}")
        arrays = [self._array(name, entry, data_start) for name, entry in entries.items()]
        arrays.sort(key=lambda array: (array.start, array.data.nbytes))
        self._check_layout(arrays, data_start)
        return {array.name: array for array in arrays}

    def _header(self, text: bytes) -> dict[str, Any]:
        try:
            header = json.loads(text, object_pairs_hook=self._without_doubles)
        except (ValueError, RecursionError) as error:
            self._fail(f"the header is no JSON: {error}{self._guess()}", _LENGTH_BYTES)
        if not isinstance(header, dict):
            self._fail(f"the header is a {type(header).__name__}; expected a JSON object", _LENGTH_BYTES)
        return header

    def _without_doubles(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            self._fail(f"the header has two entries {double[:100]!r}", _LENGTH_BYTES)
        return found

    def _array(self, name: str, entry: Any, data_start: int) -> StoredArray:
        shown = repr(name[:100])
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
            known = ", ".join(sorted(_DTYPE_BYTES))
            self._fail(f"tensor {shown} has the type {str(dtype)[:40]!r}; expected one of {known}")
        if not _are_sizes(shape) or len(shape) > MAX_DIMS:
            self._fail(f"tensor {shown} has the shape {str(shape)[:80]}; expected at most {MAX_DIMS} sizes")
        if not _are_sizes(offsets) or len(offsets) != 2:
            self._fail(f"tensor {shown} has the data_offsets {str(offsets)[:80]}; expected [begin, end]")
        num_bytes, (begin, end) = prod(shape) * _DTYPE_BYTES[dtype], offsets
        if end - begin != num_bytes:
            fact = f"tensor {shown}, {dtype} of shape {tuple(shape)}, takes {num_bytes} bytes"
            self._fail(f"{fact}; its data_offsets give it {end - begin}")
        if data_start + end > len(self._mapping):
            fact = f"tensor {shown} ends at byte {data_start + end}, but the file has {len(self._mapping)}"
            self._fail(f"{fact}; it is cut short, download it again")
        start = data_start + begin
        return StoredArray(name, dtype, tuple(shape), self._view[start : start + num_bytes], self._mapping, start)

    def _check_layout(self, arrays: list[StoredArray], data_start: int) -> None:
        """Fail unless the arrays' bytes follow one another to the end of the file."""
        if arrays and arrays[0].start != data_start:
            self._fail(f"{arrays[0].start - data_start} bytes before the first tensor belong to none", data_start)
        for first, second in pairwise(arrays):
            end = first.start + first.data.nbytes
            if second.start != end:
                what = "overlap" if second.start < end else "leave a hole between them"
                self._fail(f"tensors {first.name[:100]!r} and {second.name[:100]!r} {what}", second.start)
        end = arrays[-1].start + arrays[-1].data.nbytes if arrays else data_start
        if end != len(self._mapping):
            self._fail(f"{len(self._mapping) - end} bytes behind the last tensor belong to none", end)

    def _guess(self) -> str:
        """Say what a file is that people take for safetensors."""
        begins = self._mapping[:64]
        for start, what in _OTHER_FILES:
            if begins.startswith(start):
                return f"; this looks like {what}"
        return ""

    def _fail(self, fact: str, offset: int | None = None) -> NoReturn:
        raise CheckpointError(fact, path=self._path, offset=offset)


_OTHER_FILES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model; run `git lfs pull`"),
    (b"PK\x03\x04", "a PyTorch checkpoint, which can run code and is not read; convert it to safetensors"),
    (b"GGUF", "a GGUF file; give its path"),
    (b"<", "a web page, perhaps a failed download; download the model again"),
)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)
