"""From an open checkpoint to a model on a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.checkpoint.weights import Weights
from caudal.errors import ConfigError
from caudal.models.decoder import Decoder
from caudal.models.from_gguf import read_spec

if TYPE_CHECKING:
    from caudal.backends.base import Backend
    from caudal.checkpoint.gguf_file import GGUFFile


def load_model(checkpoint: GGUFFile, backend: Backend, max_model_len: int | None = None) -> Decoder:
    """Read the spec, place every weight on the backend and check that none is left over.

    Args:
        checkpoint: an open file; its tensors are views of it, and a backend may keep some.
        backend: where the weights go.
        max_model_len: tokens that a sequence may have; the model's context length if None.

    Raises:
        UnsupportedArchitecture, MissingTensor, UnusedTensors, CheckpointError: the file is not one of ours or lies.
        ConfigError: max_model_len is more than the model's context length.
    """
    weights = Weights(checkpoint.tensors, checkpoint.path)
    spec = read_spec(checkpoint, weights, max_model_len)
    if max_model_len is not None and max_model_len > spec.context_length:
        message = f"max_model_len is {max_model_len}; the model was made for {spec.context_length}; lower it"
        raise ConfigError(message)
    return Decoder(spec, weights, backend)
