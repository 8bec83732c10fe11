"""Opens a folder as Hugging Face repositories have them: config.json, *.safetensors and the tokenizer's files.

Sources: transformers' documentation of config.json, generation_config.json and chat_template.jinja; huggingface_hub's
"Serialization" for model.safetensors.index.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from caudal.checkpoint.hf_metadata import describe_config
from caudal.checkpoint.mapped_file import FileStamp, file_stamp, identity_of
from caudal.checkpoint.safetensors_file import StoredArray, map_safetensors
from caudal.checkpoint.tensor import Tensor
from caudal.errors import CheckpointError, UnsupportedFormat
from caudal.quant import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
MAX_JSON_BYTES = 1 << 28  # a tokenizer.json of 262,144 tokens has 33 MB
_JSON_FILES = (CONFIG, "generation_config.json", "tokenizer_config.json")
_PICKLES = ("*.bin", "*.pt", "*.pth")


class HFFolder:
    """A model folder, open.

    Attributes:
        container: its kind.
        path: of the folder.
        config, generation_config, tokenizer_config: what the files of these names hold;
            empty where there is no such file.
        arrays: name -> StoredArray of all shards, in order of file and place.

    Args:
        stamps: of all files, from before they were opened.
    """

    container = "safetensors"

    def __init__(
        self,
        path: Path,
        jsons: Mapping[str, Mapping[str, Any]],
        arrays: dict[str, StoredArray],
        stamps: Sequence[FileStamp] = (),
    ) -> None:
        self.path = path
        self.config, self.generation_config, self.tokenizer_config = (
            MappingProxyType(dict(jsons.get(name, {}))) for name in _JSON_FILES
        )
        self.arrays: Mapping[str, StoredArray] = MappingProxyType(arrays)
        self._arrays = arrays
        self._stamps = tuple(stamps)

    @property
    def config_path(self) -> Path:
        """The file that `config` comes from, for errors."""
        return self.path / CONFIG

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the folder says of the model, in the keys of the GGUF specification; see hf_metadata."""
        template = self.text("chat_template.jinja")
        return MappingProxyType(describe_config(self.path, self.config, self.tokenizer_config, template))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Stored name -> Tensor, of all that are plain numbers.

        Raises:
            UnsupportedFormat: there is an array that no format of caudal.quant reads.
        """
        return {name: plain_tensor(array, self.path) for name, array in self.arrays.items()}

    @property
    def stored(self) -> Mapping[str, StoredArray]:
        """What lies in the files, for descriptions."""
        return self.arrays

    @property
    def total_tensor_bytes(self) -> int:
        """Bytes of all arrays, as stored."""
        return sum(array.data.nbytes for array in self.arrays.values())

    def text(self, name: str) -> str | None:
        """Return a file's text, None if there is no such file.

        Raises:
            CheckpointError: it is too large, or no UTF-8.
        """
        return read_text(self.path / name)

    def identity(self) -> str:
        """Return a digest of what tells this folder from others, and from itself before a change."""
        return identity_of(self._stamps, self.arrays.values())

    def close(self) -> None:
        """Let go of the files. They stay mapped while anyone still holds one of their arrays."""
        self._arrays.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_hf_folder(path: Path | str) -> HFFolder:
    """Open a model folder.

    Raises:
        CheckpointError: a file or a shard is missing, truncated, contradictory or none of its kind.
    """
    path = Path(path)
    files = [path / name for name in _JSON_FILES]
    shards = shard_files(path)
    stamps = [file_stamp(file) for file in (*files, *shards)]
    jsons = {file.name: read_json(file) for file in files if file.is_file()}
    if CONFIG not in jsons:
        fact = f"the folder holds no {CONFIG}; give a folder as Hugging Face repositories have them, or a .gguf file"
        raise CheckpointError(fact, path=path)
    arrays: dict[str, StoredArray] = {}
    for shard, names in shards.items():
        found = map_safetensors(shard)
        for name in names:
            if name not in found:
                fact = f"{INDEX} says that tensor {name!r} is here, which it is not"
                raise CheckpointError(fact, path=shard)
        for name, array in found.items():
            if name in arrays:
                fact = f"tensor {name!r} is also in an earlier shard"
                raise CheckpointError(fact, path=shard)
            arrays[name] = array
    return HFFolder(path, jsons, arrays, stamps)


def shard_files(path: Path) -> dict[Path, list[str]]:
    """Return the files that hold the weights, each with the tensors that the index says are in it.

    Raises:
        CheckpointError: a shard is missing, or there are no weights, or the index is none.
    """
    index = path / INDEX
    if index.is_file():
        return _indexed_shards(index)
    found = [path / WHOLE] if (path / WHOLE).is_file() else sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: []}
    if found:
        names = ", ".join(file.name for file in found[:5])
        fact = f"the folder holds {len(found)} .safetensors files ({names}) and no {INDEX}; download that file too"
        raise CheckpointError(fact, path=path)
    fact = "the folder holds no .safetensors file"
    if any(file for pattern in _PICKLES for file in path.glob(pattern)):
        fact += "; PyTorch checkpoints are not read, for they can run code: convert the model to safetensors"
    raise CheckpointError(fact, path=path)


def _indexed_shards(index: Path) -> dict[Path, list[str]]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        fact = f"weight_map is {str(weight_map)[:40]}; expected names of tensors and of their files"
        raise CheckpointError(fact, path=index)
    shards: dict[Path, list[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            fact = f"tensor {tensor[:100]!r} should be in {str(file)[:100]!r}; expected a .safetensors file beside this"
            raise CheckpointError(fact, path=index)
        shards.setdefault(index.parent / file, []).append(tensor)
    for shard, names in shards.items():
        if not shard.is_file():
            fact = f"shard {shard.name} is missing, which holds {len(names)} tensors, {names[0]!r} among them"
            fact += f"; put all {len(shards)} shards in one folder"
            raise CheckpointError(fact, path=index.parent)
    return shards


def plain_tensor(array: StoredArray, path: Path) -> Tensor:
    """Return an array of numbers as a tensor.

    Raises:
        UnsupportedFormat: its numbers are of a kind that caudal.quant does not have.
    """
    if array.dtype not in FORMATS:
        fact = f"tensor {array.name!r} is stored as {array.dtype}, which Caudal cannot read here; "
        raise UnsupportedFormat(fact + "expected F32, F16 or BF16", path=path)
    return Tensor(array.name, array.dtype, array.shape, array.data, array.mapping, array.start)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: it is too large, or no JSON object.
    """
    try:
        value = json.loads(read_text(path) or "")
    except (ValueError, RecursionError) as error:
        fact = f"this is no JSON: {error}"
        raise CheckpointError(fact, path=path) from error
    if not isinstance(value, dict):
        fact = f"the file holds a {type(value).__name__}; expected a JSON object"
        raise CheckpointError(fact, path=path)
    return value


def read_text(path: Path) -> str | None:
    """Return a file's text, None if there is no such file.

    Raises:
        CheckpointError: it is too large, or no UTF-8.
    """
    try:
        if not path.is_file():
            return None
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            fact = f"the file has {size} bytes; expected at most {MAX_JSON_BYTES}"
            raise CheckpointError(fact, path=path)
        return path.read_text(encoding="utf-8")
    except OSError as error:
        fact = f"cannot read the file: {error.strerror or error}"
        raise CheckpointError(fact, path=path) from error
    except UnicodeDecodeError as error:
        fact = f"the file is no UTF-8: {error}"
        raise CheckpointError(fact, path=path) from error
