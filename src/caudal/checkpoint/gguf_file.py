"""Opens GGUF models, single files or split ones, and maps their tensors.

Source: the GGUF file format, versions 2 and 3; split files carry split.no, split.count and split.tensors.count.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from caudal.checkpoint.gguf_header import GGUFHeader, read_header
from caudal.checkpoint.mapped_file import FileStamp, file_stamp, identity_of, map_file
from caudal.checkpoint.tensor import Tensor
from caudal.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIN_BYTES = 4  # of the file's magic; the header's reader says what else is missing
SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFFile:
    """A GGUF model, open: metadata and tensors of all its shards.

    Tensors are views of mapped memory: opening a file reads its header alone.

    Attributes:
        container: its kind.
        path: of the file, or of the first shard.
        metadata: key -> int, float, bool, str, or a list of one of them; of the first shard.
        tensors: name -> Tensor, in the order of the file. Empty after close.

    Args:
        stamps: of all shards, from before they were opened.
    """

    container = "gguf"

    def __init__(
        self, path: Path, metadata: dict[str, Any], tensors: dict[str, Tensor], stamps: Sequence[FileStamp] = ()
    ) -> None:
        self.path = path
        self._stamps = tuple(stamps)
        self.metadata: Mapping[str, Any] = MappingProxyType(metadata)
        self.tensors: Mapping[str, Tensor] = MappingProxyType(tensors)
        self._tensors = tensors

    @property
    def stored(self) -> Mapping[str, Tensor]:
        """What lies in the files, for descriptions."""
        return self.tensors

    @property
    def total_tensor_bytes(self) -> int:
        """Bytes of all tensors, as stored."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())

    def identity(self) -> str:
        """Return a digest of what tells these files from others: places, sizes, times of change, and whole headers."""
        return identity_of(self._stamps, self.tensors.values())

    def close(self) -> None:
        """Let go of the file. It stays mapped while anyone still holds one of its tensors."""
        self._tensors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_gguf(path: Path | str) -> GGUFFile:
    """Open a GGUF model; of a split model, give the first shard and the others are found beside it.

    Raises:
        CheckpointError: the file or a shard is missing, truncated, contradictory or no GGUF file.
        UnsupportedFormat: a tensor is stored in a format that caudal.quant does not have.
    """
    path = Path(path)
    stamps = [file_stamp(path)]
    header, tensors = map_shard(path)
    count = split_value(header, "split.count", 1, path)
    if count > 1:
        for shard in other_shards(header, count, path):
            stamps.append(file_stamp(shard))
            add_shard(tensors, shard, count)
        total = split_value(header, "split.tensors.count", len(tensors), path)
        if total != len(tensors):
            fact = f"split.tensors.count is {total}, but the {count} shards hold {len(tensors)} tensors"
            raise CheckpointError(fact, path=path)
    return GGUFFile(path, header.metadata, tensors, stamps)


def map_shard(path: Path) -> tuple[GGUFHeader, dict[str, Tensor]]:
    """Map one file and read its header."""
    data = map_file(path, "a .gguf file", MIN_BYTES)
    header = read_header(data, path)
    # A view of a read-only mapping is itself read-only, and keeps the mapping alive.
    view = np.frombuffer(data, dtype=np.uint8)
    tensors = {
        info.name: Tensor(
            info.name,
            info.format,
            info.shape,
            view[info.start : info.start + info.num_bytes],
            mapping=data,
            start=info.start,
        )
        for info in header.tensors.values()
    }
    return header, tensors


def other_shards(header: GGUFHeader, count: int, path: Path) -> list[Path]:
    """Return the paths of shards 2 to `count`, from the path and header of shard 1."""
    match = SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        fact = f"the file is one of {count} shards; expected a name that ends in -00001-of-{count:05}.gguf"
        raise CheckpointError(fact, path=path)
    names = [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    if split_value(header, "split.no", 0, path) != 0 or path.name != names[0]:
        fact = f"this is not the first of {count} shards; open {names[0]}"
        raise CheckpointError(fact, path=path)
    shards = [path.with_name(name) for name in names[1:]]
    for shard in shards:
        if not shard.is_file():
            fact = f"shard {shard.name} of {count} is missing; put all shards in one directory"
            raise CheckpointError(fact, path=path)
    return shards


def add_shard(tensors: dict[str, Tensor], shard: Path, count: int) -> None:
    """Add the tensors of a later shard, after checking that it is the one its name says."""
    header, more = map_shard(shard)
    number = int(shard.name[-len("00002-of-00003.gguf") :][:5]) - 1
    found = split_value(header, "split.no", -1, shard), split_value(header, "split.count", -1, shard)
    if found != (number, count):
        fact = f"split.no and split.count are {found[0]} and {found[1]}; expected {number} and {count}"
        raise CheckpointError(fact, path=shard)
    for name, tensor in more.items():
        if name in tensors:
            fact = f"tensor {name!r} is also in an earlier shard"
            raise CheckpointError(fact, path=shard)
        tensors[name] = tensor


def split_value(header: GGUFHeader, key: str, default: int, path: Path) -> int:
    """Return a whole number about the split."""
    value = header.metadata.get(key, default)
    if type(value) is not int:
        fact = f"{key} is {value!r}; expected a whole number"
        raise CheckpointError(fact, path=path)
    return value
