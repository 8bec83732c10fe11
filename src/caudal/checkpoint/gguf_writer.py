"""Writes GGUF version 3 files.

Source: the GGUF file format, version 3.
"""

from __future__ import annotations

import struct
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from caudal.checkpoint import gguf_types
from caudal.quant import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    # (format, row-major shape, bytes); the bytes may come from a function that is called when they are written.
    Stored = tuple[str, tuple[int, ...], NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]]

# numpy calls int64 l or q, depending on the machine.
NUMPY_LETTERS = MappingProxyType({"l": "q", "L": "Q"} if np.dtype("l").itemsize == 8 else {"l": "i", "L": "I"})
LETTER_IDS = MappingProxyType({letter: id_ for id_, letter in gguf_types.SCALARS.items()})


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored], alignment: int = 32) -> None:
    """Write a model.

    A Python int becomes a u32 if it fits, else a u64 or i64; a float an f32; a list has the type that holds all of
    its elements; numpy scalars and arrays keep their own type.

    Args:
        path: of the file, which is replaced if it exists.
        metadata: key -> bool, int, float, str, numpy scalar, or a list or 1-D array of one of them.
        tensors: name -> (format, row-major shape, packed bytes or a function that returns them).
        alignment: of every tensor's first byte; a power of two. Written as a key when it is not 32.

    Raises:
        ValueError: a value or a tensor that GGUF cannot hold, or bytes that do not fit the shape.
    """
    keys = dict(metadata) if alignment == 32 else {**metadata, "general.alignment": np.uint32(alignment)}
    header = bytearray(b"GGUF" + struct.pack("<Iqq", 3, len(tensors), len(keys)))
    for key, value in keys.items():
        header += string_bytes(key) + value_bytes(key, value)
    sizes = {name: tensor_bytes(name, stored) for name, stored in tensors.items()}
    offset = 0
    for name, (format_name, shape, _) in tensors.items():
        dims = shape[::-1]
        header += string_bytes(name) + struct.pack(f"<I{len(dims)}q", len(dims), *dims)
        header += struct.pack("<IQ", gguf_types.TENSOR_FORMAT_IDS[format_name], offset)
        offset += padded(sizes[name], alignment)
    with path.open("wb") as file:
        file.write(header.ljust(padded(len(header), alignment), b"\0"))
        for name, (_, _, source) in tensors.items():
            data = source() if callable(source) else source
            if data.nbytes != sizes[name]:
                message = f"{name}: expected {sizes[name]} bytes for its format and shape, got {data.nbytes}"
                raise ValueError(message)
            file.write(np.ascontiguousarray(data).data)
            file.write(bytes(padded(data.nbytes, alignment) - data.nbytes))


def padded(size: int, alignment: int) -> int:
    """Round up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


def tensor_bytes(name: str, stored: Stored) -> int:
    """Return how many bytes a tensor takes."""
    block = FORMATS[stored[0]]
    shape = stored[1]
    if not 1 <= len(shape) <= 4 or shape[-1] % block.block_elems:
        message = (
            f"{name}: shape {shape} cannot be stored as {block.name}, whose blocks hold {block.block_elems} values"
        )
        raise ValueError(message)
    return prod(shape) // block.block_elems * block.block_bytes


def string_bytes(text: str) -> bytes:
    """Encode a string with its length before it."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(key: str, value: Any) -> bytes:
    """Encode a value with its type before it."""
    if isinstance(value, str):
        return struct.pack("<I", gguf_types.STRING) + string_bytes(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        head = struct.pack("<IIQ", gguf_types.ARRAY, gguf_types.STRING, len(value))
        return head + b"".join(string_bytes(item) for item in value)
    array = number_array(key, value)
    id_ = LETTER_IDS[NUMPY_LETTERS.get(array.dtype.char, array.dtype.char)]
    head = struct.pack("<IIQ", gguf_types.ARRAY, id_, array.size) if array.ndim else struct.pack("<I", id_)
    return head + array.astype(array.dtype.newbyteorder("<")).tobytes()


def number_array(key: str, value: Any) -> NDArray[Any]:
    """Return numbers as an array of a type that GGUF has: 0-D for one number, 1-D for a list."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    else:
        array = np.array(value, dtype=letter_for(value if isinstance(value, (list, tuple)) else [value]))
    if array.ndim > 1 or NUMPY_LETTERS.get(array.dtype.char, array.dtype.char) not in LETTER_IDS:
        message = f"{key}: GGUF cannot hold {value!r}; expected bools, whole numbers of 64 bits, floats or strings, "
        message += "one or a list of one type"
        raise ValueError(message)
    return array


def letter_for(values: Sequence[Any]) -> str:
    """Return the letter of the type that holds all of the values, or "O" if GGUF has none."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "?"
    if kinds == {int}:
        low, high = min(values), max(values)
        if low >= 0:
            return "I" if high < 1 << 32 else ("Q" if high < 1 << 64 else "O")
        return "q" if low >= -(1 << 63) and high < 1 << 63 else "O"
    return "f" if kinds <= {int, float} else "O"
