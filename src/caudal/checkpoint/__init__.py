"""Model files: their metadata and their tensors. Names no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.checkpoint.gguf_file import GGUFFile, open_gguf
from caudal.checkpoint.reader import MetadataReader
from caudal.checkpoint.tensor import Tensor
from caudal.checkpoint.weights import Weights

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GGUFFile", "MetadataReader", "Tensor", "Weights", "open_checkpoint"]


def open_checkpoint(path: Path | str) -> GGUFFile:
    """Open a model file. GGUF is the one container so far.

    Raises:
        CheckpointError: the file cannot be used; see open_gguf.
    """
    return open_gguf(path)
