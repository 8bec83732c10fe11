"""What is known of a model from its file alone, loaded or not: for lists of models and their descriptions."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeGuard

from caudal.tokenizer.fim_tokens import find_fim_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Scalar = str | int | float | bool

_MAX_TEXT_CHARS = 4096
# general.file_type of the GGUF specification: the mix that most of a file is stored as.
_FILE_TYPES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    24: "IQ1_S",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    38: "MXFP4_MOE",
}


class _Stored(Protocol):
    @property
    def format(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class ModelFile(Protocol):
    """An open checkpoint, as far as it is looked at here."""

    path: Path
    container: str

    @property
    def metadata(self) -> Mapping[str, object]:
        """Keys of the GGUF specification."""

    @property
    def stored(self) -> Mapping[str, _Stored]:
        """Name -> what lies in the files."""

    @property
    def total_tensor_bytes(self) -> int:
        """Bytes of all tensors, as stored."""

    def identity(self) -> str:
        """Return a digest of what tells this file from others."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model's description. The defaults are those of a model of which nothing is known.

    Attributes:
        file_name: without its directory, which is nobody's business.
        container: "gguf" or "safetensors".
        architecture: as the file names it.
        num_parameters: elements of all tensors.
        quantization: the format of most weights, "Q4_K_M" for example; "" if it is not known.
        size_bytes: of all tensors.
        modified_ns: Unix time of the file's last change, in nanoseconds.
        digest: 64 hex digits that tell this file from others; not a checksum of its content.
        context_length: the longest that the model was trained for; 0 if it is not said.
        hidden_size, vocab_size: 0 if it is not said.
        chat_template: its source, "" for a base model.
        fills_in_the_middle: whether its vocabulary has the tokens for that.
        metadata: the file's keys with single values; long texts are left out.
    """

    file_name: str = ""
    container: str = "gguf"
    architecture: str = ""
    num_parameters: int = 0
    quantization: str = ""
    size_bytes: int = 0
    modified_ns: int = 0
    digest: str = "0" * 64
    context_length: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    chat_template: str = ""
    fills_in_the_middle: bool = False
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}), hash=False)


def model_facts(file: ModelFile) -> ModelFacts:
    """Return the facts of an open checkpoint. Raises nothing: a key that makes no sense counts as absent."""
    metadata = file.metadata
    architecture = _text(metadata.get("general.architecture"))
    tokens = metadata.get("tokenizer.ggml.tokens")
    elements: Counter[str] = Counter()
    for tensor in file.stored.values():
        elements[tensor.format] += math.prod(tensor.shape)
    return ModelFacts(
        file_name=file.path.name,
        container=file.container,
        architecture=architecture,
        num_parameters=elements.total(),
        quantization=_quantization(metadata.get("general.file_type"), elements),
        size_bytes=file.total_tensor_bytes,
        modified_ns=_modified_ns(file.path),
        digest=hashlib.sha256(file.identity().encode()).hexdigest(),
        context_length=_number(metadata.get(f"{architecture}.context_length")),
        hidden_size=_number(metadata.get(f"{architecture}.embedding_length")),
        vocab_size=len(tokens)
        if isinstance(tokens, list | tuple)
        else _number(metadata.get(f"{architecture}.vocab_size")),
        chat_template=_text(metadata.get("tokenizer.chat_template")),
        fills_in_the_middle=find_fim_tokens(metadata) is not None,
        metadata=MappingProxyType({key: value for key, value in metadata.items() if _is_plain(value)}),
    )


def _quantization(file_type: object, elements: Counter[str]) -> str:
    if isinstance(file_type, int) and file_type in _FILE_TYPES:
        return _FILE_TYPES[file_type]
    return elements.most_common(1)[0][0] if elements else ""


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_plain(value: object) -> TypeGuard[Scalar]:
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT_CHARS
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
