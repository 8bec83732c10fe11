"""From an open checkpoint to a model on a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.checkpoint.hf_folder import HFFolder
from caudal.checkpoint.reader import MetadataReader
from caudal.checkpoint.weights import Weights
from caudal.errors import ConfigError
from caudal.models.decoder import Decoder
from caudal.models.encoder import Encoder
from caudal.models.encoder_from_gguf import is_encoder, read_encoder_spec, read_pooling
from caudal.models.encoder_spec import EncoderSpec
from caudal.models.from_gguf import read_spec
from caudal.models.from_hf import hf_context_length, hf_weights, read_hf_spec

if TYPE_CHECKING:
    from caudal.backends.base import Backend
    from caudal.checkpoint import Checkpoint
    from caudal.models.encoder_spec import Pooling
    from caudal.models.spec import DecoderSpec


def load_model(
    checkpoint: Checkpoint, backend: Backend, max_model_len: int | None = None, *, pooling: Pooling | None = None
) -> Decoder | Encoder:
    """Read the spec, place every weight on the backend and check that none is left over.

    Args:
        checkpoint: an open model; its tensors are views of its files, and a backend may keep some.
        backend: where the weights go.
        max_model_len: tokens that a sequence may have; the model's context length if None.
        pooling: for embeddings of a model that was not made for them. See pooling_of.

    Raises:
        UnsupportedArchitecture, MissingTensor, UnusedTensors, CheckpointError: the file is not one of ours or lies.
        ConfigError: max_model_len is more than the model's context length.
    """
    spec, weights = _read(checkpoint, max_model_len)
    if max_model_len is not None and max_model_len > spec.context_length:
        message = f"max_model_len is {max_model_len}; the model was made for {spec.context_length}; lower it"
        raise ConfigError(message)
    chosen = pooling_of(checkpoint, pooling)
    if isinstance(spec, EncoderSpec):
        assert chosen is not None, "an encoder is always pooled"
        return Encoder(spec, weights, backend, chosen)
    return Decoder(spec, weights, backend, pooling=chosen)


def _read(checkpoint: Checkpoint, max_model_len: int | None) -> tuple[DecoderSpec | EncoderSpec, Weights]:
    """Return what the model is made of, and the cursor over its tensors."""
    if isinstance(checkpoint, HFFolder):
        weights = hf_weights(checkpoint)
        return read_hf_spec(checkpoint, weights, max_model_len), weights
    weights = Weights(checkpoint.tensors, checkpoint.path)
    if is_encoder(checkpoint):
        return read_encoder_spec(checkpoint, weights), weights
    return read_spec(checkpoint, weights, max_model_len), weights


def pooling_of(checkpoint: Checkpoint, asked: Pooling | None) -> Pooling | None:
    """Return how a model's rows become one vector: as asked, or as the file says. None: the model writes text."""
    return asked if isinstance(checkpoint, HFFolder) else asked or read_pooling(checkpoint)


def context_length_of(checkpoint: Checkpoint) -> int:
    """Return the tokens that the model was made for. Raises CheckpointError if the file does not say."""
    if isinstance(checkpoint, HFFolder):
        return hf_context_length(checkpoint)
    keys = MetadataReader(checkpoint.metadata, path=checkpoint.path)
    name = keys.str("general.architecture")
    return MetadataReader(checkpoint.metadata, name, path=checkpoint.path).int("context_length")
