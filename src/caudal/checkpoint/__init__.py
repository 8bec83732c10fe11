"""Model files: their metadata and their tensors. Names no model."""

from __future__ import annotations

from pathlib import Path

from caudal.checkpoint.gguf_file import GGUFFile, open_gguf
from caudal.checkpoint.hf_folder import HFFolder, open_hf_folder
from caudal.checkpoint.reader import MetadataReader
from caudal.checkpoint.tensor import Tensor
from caudal.checkpoint.weights import Weights

Checkpoint = GGUFFile | HFFolder
"""An open model, in either container."""

__all__ = ["Checkpoint", "GGUFFile", "HFFolder", "MetadataReader", "Tensor", "Weights", "open_checkpoint"]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a GGUF file, or a folder as Hugging Face repositories have them.

    Raises:
        CheckpointError: it cannot be used; see open_gguf and open_hf_folder.
    """
    return open_hf_folder(path) if Path(path).is_dir() else open_gguf(path)
