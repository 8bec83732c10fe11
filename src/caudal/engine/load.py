"""From a configuration to an engine with its model loaded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import msgspec

from caudal.backends.registry import make_backend
from caudal.checkpoint import open_checkpoint
from caudal.engine.engine import Engine
from caudal.engine.model_facts import ModelFacts
from caudal.engine.pooling_engine import PoolingEngine
from caudal.engine.runner import Runner
from caudal.errors import CheckpointError
from caudal.models.load import context_length_of, load_model, pooling_of

if TYPE_CHECKING:
    from caudal.checkpoint import Checkpoint
    from caudal.config import EngineConfig
    from caudal.models.encoder_spec import Pooling


MAX_TEXT_TOKENS = 8192
"""Longest text that an embedding model reads unless it was asked for more: a text is read in one step."""


def load_engine(config: EngineConfig) -> Engine | PoolingEngine:
    """Open the model's file, load it and plan its memory.

    Raises:
        CheckpointError: the file cannot be used.
        ConfigError: the configuration does not fit the model or the machine.
    """
    with open_checkpoint(config.model_path) as checkpoint:
        return load_engine_from(checkpoint, config)


def load_engine_from(checkpoint: Checkpoint, config: EngineConfig) -> Engine | PoolingEngine:
    """Load the model of an open file; the engine keeps nothing of the file. Raises as load_engine does."""
    start_s = time.perf_counter()
    pooling = pooling_of(checkpoint, cast("Pooling | None", config.pooling))
    if pooling is not None:
        config = _whole_texts(config, checkpoint)
    backend = make_backend(config, checkpoint)
    model = load_model(checkpoint, backend, config.max_model_len, pooling=pooling)
    backend.loaded()
    max_model_len = config.max_model_len or model.spec.context_length
    if max_model_len < 2:
        message = f"context length is {max_model_len}; expected at least 2"
        raise CheckpointError(message, path=config.model_path)
    runner = Runner(model, backend, config, max_model_len)
    facts = ModelFacts(
        vocab_size=model.spec.vocab_size,
        weights_bytes=backend.weights_bytes,
        step_weights_bytes=backend.weights_bytes - model.lookup_bytes,
        macs_per_token=model.spec.macs_per_token,
        macs_per_logits=model.spec.macs_per_logits,
        num_threads=backend.num_threads,
        isa=backend.isa,
        kv_dtype=backend.kv_dtype,
        load_s=time.perf_counter() - start_s,
    )
    if pooling is not None:
        return PoolingEngine(config, runner, facts, max_model_len, pooling=pooling, scores=model.scores)
    return Engine(config, runner, facts, max_model_len)


def _whole_texts(config: EngineConfig, checkpoint: Checkpoint) -> EngineConfig:
    """Return the configuration with steps that hold the longest text, and a KV cache for one step."""
    context_length = context_length_of(checkpoint)
    max_model_len = config.max_model_len or min(context_length, MAX_TEXT_TOKENS)
    max_tokens = max(config.max_num_batched_tokens, max_model_len)
    return msgspec.structs.replace(config, max_model_len=max_model_len, max_num_batched_tokens=max_tokens)
