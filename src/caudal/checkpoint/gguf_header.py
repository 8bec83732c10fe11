"""Reads the header of one GGUF file: metadata and the list of tensors. Trusts nothing.

Source: the GGUF file format, versions 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from caudal.checkpoint import gguf_types
from caudal.checkpoint.byte_reader import ByteReader
from caudal.errors import UnsupportedFormat
from caudal.quant import FORMATS

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable
    from pathlib import Path

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_KEY_BYTES = (1 << 16) - 1
MAX_NAME_BYTES = 64
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
# The first bytes of files that people take for GGUF.
OTHER_FILES = (
    (b"tjgg", "an old GGJT file; convert the model again with a current converter"),
    (b"lmgg", "an old GGML file; convert the model again with a current converter"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model; run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint; convert it to GGUF"),
    (b"<", "a web page, perhaps a failed download; download the model again"),
    (b"FUGG", "a big-endian GGUF file; convert it to little-endian"),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major; `start` counts from the start of the file."""

    name: str
    format: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All that a file says before its data."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(data: mmap.mmap, path: Path) -> GGUFHeader:
    """Read and check a whole header.

    Every tensor is inside the file when this returns.

    Raises:
        CheckpointError: with the file, the offset and the fact.
    """
    reader = ByteReader(data, path)
    version = read_version(reader, data)
    num_tensors = read_count(reader, "tensors", MAX_TENSORS)
    num_keys = read_count(reader, "metadata keys", MAX_KEYS)
    # The smallest key is u64 + 1 byte, i32 type, 1 byte; the smallest tensor u64, u32, i32, u64.
    reader.need(num_keys, 14, "the metadata")
    metadata = read_metadata(reader, num_keys)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    reader.need(num_tensors, 24, "the list of tensors")
    found = [read_tensor(reader, index) for index in range(num_tensors)]
    data_start = -(-reader.offset // alignment) * alignment
    tensors = {}
    for at, info in found:
        if info.name in tensors:
            fact = f"tensor {info.name!r} is listed twice"
            raise reader.error(fact, at)
        tensors[info.name] = place_tensor(reader, at, info, alignment, (data_start, len(data)))
    check_overlaps(reader, tensors.values())
    return GGUFHeader(version, metadata, tensors)


def check_overlaps(reader: ByteReader, tensors: Iterable[TensorInfo]) -> None:
    """Fail if two tensors share bytes: a small file could then ask for any amount of memory."""
    by_start = sorted(tensors, key=lambda info: info.start)
    for info, following in pairwise(by_start):
        if info.start + info.num_bytes > following.start:
            fact = f"tensors {info.name!r} and {following.name!r} overlap: the first takes bytes {info.start} to "
            fact += f"{info.start + info.num_bytes}"
            raise reader.error(fact, following.start)


def read_version(reader: ByteReader, data: mmap.mmap) -> int:
    """Read the magic and the version, and say what the file is if it is not a GGUF that Caudal reads."""
    if data[:4] != b"GGUF":
        guess = next((text for start, text in OTHER_FILES if data[: len(start)] == start), None)
        fact = f"not a GGUF file: it starts with {data[:4]!r}, expected b'GGUF'"
        raise reader.error(fact if guess is None else f"{fact}; it looks like {guess}", 0)
    reader.offset = 4
    version: int = reader.value("I", "the version")
    if version in {2, 3}:
        return version
    if version & 0xFFFF == 0 and version:
        fact = "a big-endian GGUF file; convert it to little-endian"
    elif version == 1:
        fact = "GGUF version 1, a format long withdrawn; convert the model again with a current converter"
    else:
        fact = f"GGUF version {version}; Caudal reads versions 2 and 3"
    raise reader.error(fact, 4)


def read_count(reader: ByteReader, what: str, limit: int) -> int:
    """Read a number of things to come."""
    start = reader.offset
    count: int = reader.value("q", f"the number of {what}")
    if not 0 <= count <= limit:
        fact = f"the file is said to hold {count} {what}; expected 0 to {limit}"
        raise reader.error(fact, start)
    return count


def read_metadata(reader: ByteReader, num_keys: int) -> dict[str, Any]:
    """Read all keys and values."""
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        start = reader.offset
        key = reader.text(f"metadata key {index}", MAX_KEY_BYTES, errors="strict")
        if not key or key in metadata:
            fact = f"metadata key {key!r} occurs twice" if key else f"metadata key {index} is empty"
            raise reader.error(fact, start)
        type_at = reader.offset
        kind: int = reader.value("I", f"the type of {key}")
        metadata[key] = read_value(reader, key, kind)
        if key == "general.alignment":
            check_alignment(reader, kind, metadata[key], type_at)
    return metadata


def read_value(reader: ByteReader, key: str, kind: int) -> Any:
    """Read one value; an array comes back as a list."""
    if kind == gguf_types.STRING:
        return reader.text(f"the value of {key}")
    if kind in gguf_types.SCALARS:
        return reader.value(gguf_types.SCALARS[kind], f"the value of {key}")
    if kind != gguf_types.ARRAY:
        fact = f"the value of {key} has type {kind}; expected 0 to 12"
        raise reader.error(fact, reader.offset - 4)
    inner: int = reader.value("I", f"the element type of {key}")
    count: int = reader.value("Q", f"the length of {key}")
    reader.spend_elements(count, f"the array {key}")
    if inner == gguf_types.STRING:
        return reader.texts(count, f"the array {key}")
    if inner in gguf_types.SCALARS:
        return list(reader.values(gguf_types.SCALARS[inner], count, f"the array {key}"))
    kind_of = "arrays, which is not supported" if inner == gguf_types.ARRAY else f"type {inner}; expected 0 to 12"
    fact = f"the array {key} has elements of {kind_of}"
    raise reader.error(fact, reader.offset - 12)


def check_alignment(reader: ByteReader, kind: int, value: Any, type_at: int) -> None:
    """Fail unless the alignment is a u32 and a power of two."""
    if kind != gguf_types.UINT32:
        fact = f"general.alignment has value type {kind}; expected {gguf_types.UINT32} (u32)"
        raise reader.error(fact, type_at)
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        fact = f"general.alignment is {value}; expected a power of two up to {MAX_ALIGNMENT}"
        raise reader.error(fact, type_at + 4)


def read_tensor(reader: ByteReader, index: int) -> tuple[int, TensorInfo]:
    """Read one entry of the list of tensors; return its own offset with it. `start` still counts from the data."""
    at = reader.offset
    name = reader.text(f"the name of tensor {index}", MAX_NAME_BYTES, errors="strict")
    if not name:
        fact = f"tensor {index} has no name"
        raise reader.error(fact, at)
    dims_at = reader.offset
    num_dims: int = reader.value("I", f"the number of dimensions of {name}")
    if num_dims > MAX_DIMS:
        fact = f"tensor {name!r} is said to have {num_dims} dimensions; expected at most {MAX_DIMS}"
        raise reader.error(fact, dims_at)
    # No dimensions is a single number: a vector of one.
    dims: tuple[int, ...] = reader.values("q", num_dims, f"the shape of {name}") or (1,)
    if min(dims) < 1 or prod(dims) >= 1 << 63:
        fact = f"tensor {name!r} has the shape {dims}; expected positive sizes whose product is below 2^63"
        raise reader.error(fact, dims_at + 4)
    type_at = reader.offset
    type_id: int = reader.value("I", f"the type of {name}")
    format_name = gguf_types.TENSOR_FORMATS.get(type_id)
    block = FORMATS.get(format_name or "")
    if block is None:
        known = "no type known" if format_name is None else format_name
        fact = f"tensor {name!r} is stored as type {type_id} ({known}), which Caudal cannot read; "
        fact += f"it reads {', '.join(FORMATS)}"
        raise UnsupportedFormat(fact, path=reader.path, offset=type_at)
    if dims[0] % block.block_elems:
        fact = f"tensor {name!r} has rows of {dims[0]} values; {block.name} needs a multiple of {block.block_elems}"
        raise reader.error(fact, dims_at + 4)
    offset: int = reader.value("Q", f"the offset of {name}")
    num_bytes = prod(dims) // block.block_elems * block.block_bytes
    return at, TensorInfo(name, block.name, dims[::-1], offset, num_bytes)


def place_tensor(
    reader: ByteReader, at: int, info: TensorInfo, alignment: int, data_range: tuple[int, int]
) -> TensorInfo:
    """Turn an offset in the data section into one in the file, and check that all of the tensor is there."""
    if info.start % alignment:
        fact = f"tensor {info.name!r} has offset {info.start}, which is not a multiple of the alignment {alignment}"
        raise reader.error(fact, at)
    start = data_range[0] + info.start
    if start + info.num_bytes > data_range[1]:
        fact = f"tensor {info.name!r} ({info.format}, shape {info.shape}) should take bytes {start} to "
        fact += f"{start + info.num_bytes}, but the file has {data_range[1]}; download it again"
        raise reader.error(fact, at)
    return TensorInfo(info.name, info.format, info.shape, start, info.num_bytes)
