"""Fills an EncoderSpec from a GGUF header, and says how a model's rows are pooled.

Source: the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), keys `[arch].*`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from caudal.backends.base import RopeSpec
from caudal.checkpoint.reader import MetadataReader
from caudal.errors import CheckpointError, UnsupportedArchitecture
from caudal.models import rope
from caudal.models.architectures import ARCHITECTURES
from caudal.models.encoder_spec import EncoderSpec

if TYPE_CHECKING:
    from caudal.backends.base import Activation
    from caudal.checkpoint.gguf_file import GGUFFile
    from caudal.checkpoint.weights import Weights
    from caudal.models.encoder_spec import Pooling

_MAX_LAYERS = 4096
_MAX_SIZE = 2**24
_NUM_POOLINGS = 5  # none, mean, cls, last, rank


class _Family(NamedTuple):
    activation: Activation
    gated: bool
    rotary: bool


ENCODERS: dict[str, _Family] = {
    "bert": _Family("gelu", gated=False, rotary=False),
    "nomic-bert": _Family("silu", gated=True, rotary=True),
}


def is_encoder(checkpoint: GGUFFile) -> bool:
    """Return whether the model is one that only reads."""
    return _architecture(checkpoint) in ENCODERS


def read_pooling(checkpoint: GGUFFile) -> Pooling | None:
    """Return how the model was made to be pooled; None for one that writes text.

    Raises:
        CheckpointError: the file names a pooling that there is not.
    """
    name = _architecture(checkpoint)
    keys = MetadataReader(checkpoint.metadata, name, path=checkpoint.path)
    only_reads = name in ENCODERS or any(row.name == name and not row.is_causal for row in ARCHITECTURES)
    kind = keys.int("pooling_type", 1 if only_reads else 0)
    if not 0 <= kind < _NUM_POOLINGS:
        fact = f"{name}.pooling_type is {kind}; expected 0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)"
        raise CheckpointError(fact, path=checkpoint.path)
    ranked: Pooling = "cls" if name in ENCODERS else "last"
    poolings: tuple[Pooling | None, ...] = ("mean" if only_reads else None, "mean", "cls", "last", ranked)
    return poolings[kind]


def read_encoder_spec(checkpoint: GGUFFile, weights: Weights) -> EncoderSpec:
    """Read what the header says. Takes no tensor but looks at the embedding table for the size of the vocabulary.

    Raises:
        UnsupportedArchitecture: no such encoder, or a variant of it that Caudal does not have.
        CheckpointError: a key is missing, has the wrong type or makes no sense.
    """
    name = _architecture(checkpoint)
    family = ENCODERS[name]
    keys = MetadataReader(checkpoint.metadata, name, path=checkpoint.path)
    if keys.bool("attention.causal", False):
        fact = f"this {name} model is causal, which is not supported for encoders"
        raise UnsupportedArchitecture(fact, path=checkpoint.path)
    if keys.int("expert_count", 0):
        fact = f"this {name} model is a mixture of experts, which is not supported; use a dense model"
        raise UnsupportedArchitecture(fact, path=checkpoint.path)

    def size(key: str, limit: int = _MAX_SIZE) -> int:
        value = keys.int(key)
        if not 0 < value <= limit:
            fact = f"{name}.{key} is {value}; expected a number from 1 to {limit}"
            raise CheckpointError(fact, path=checkpoint.path)
        return value

    hidden_size, num_heads = size("embedding_length"), size("attention.head_count")
    head_size = hidden_size // num_heads
    if head_size * num_heads != hidden_size:
        fact = f"{name}.attention.head_count is {num_heads}; expected a divisor of embedding_length, {hidden_size}"
        raise CheckpointError(fact, path=checkpoint.path)
    theta = keys.float("rope.freq_base", 10000.0)
    if not 1 <= theta < float("inf"):
        fact = f"{name}.rope.freq_base is {theta}; expected a number of at least 1"
        raise CheckpointError(fact, path=checkpoint.path)
    eps = keys.float("attention.layer_norm_epsilon")
    if not 0 < eps < 1:
        fact = f"{name}.attention.layer_norm_epsilon is {eps}; expected a number between 0 and 1"
        raise CheckpointError(fact, path=checkpoint.path)
    return EncoderSpec(
        architecture=name,
        vocab_size=weights.take("token_embd.weight").shape[0],
        hidden_size=hidden_size,
        num_layers=size("block_count", _MAX_LAYERS),
        num_heads=num_heads,
        head_size=head_size,
        ffn_size=size("feed_forward_length"),
        context_length=size("context_length"),
        norm_eps=eps,
        activation=family.activation,
        rope=RopeSpec(rope.plain_frequencies(theta, head_size), head_size, interleaved=False)
        if family.rotary
        else None,
        gated=family.gated,
    )


def _architecture(checkpoint: GGUFFile) -> str:
    return MetadataReader(checkpoint.metadata, path=checkpoint.path).str("general.architecture")
