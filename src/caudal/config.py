"""What one engine is started with. Frozen; derived values belong to other objects."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from caudal.errors import ConfigError

KV_CACHE_DTYPES = ("auto", "f16", "int8")
ENVIRONMENT = ("CAUDAL_API_KEY", "CAUDAL_ISA", "CAUDAL_THREADS", "CAUDAL_CACHE_DIR", "CAUDAL_TEST_MODELS")


_AT_LEAST_ONE = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_queue_len",
    "kv_cache_bytes",
    "num_threads",
)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's configuration.

    Attributes:
        model_path: a GGUF file (the first shard of a split one).
        max_model_len: longest prompt plus answer, in tokens; None takes the model's own context,
            shortened to what the KV cache can hold.
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most tokens in one step.
        prefill_per_decode: most work of a step on each prompt while others generate, as a multiple of the work for
            them: a smaller one keeps their tokens coming, a larger one brings first tokens sooner; 0 is no limit.
        max_queue_len: most requests waiting; the next one is refused as Overloaded.
        block_size: tokens in a KV block, 16 or 32.
        kv_cache_bytes: address space for the KV cache; None plans it from free memory.
        enable_prefix_caching: reuse the KV blocks of a common beginning.
        num_speculative_tokens: most tokens to guess and check in one step where an answer repeats what came before;
            0 is off. Answers are the same.
        num_threads: None takes the cores that this process may use.
        kv_cache_dtype: what keys and values are kept as: "f16", "int8" with scales, or "auto", which is float16
            (float32 if exact, or on the reference backend).
        exact: keep activations in float32 on the CPU, and keys and values unless kv_cache_dtype says otherwise.
        pack_cache: folder that keeps weights as the CPU kernels read them, so that the next start maps them instead of
            packing them; it takes as much disk as the model. "auto" is packed/ in the cache directory.
        backend: "cpu" (native kernels) or "reference" (numpy).
    """

    model_path: str
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    prefill_per_decode: float = 1.5
    max_queue_len: int = 1024
    block_size: int = 32
    kv_cache_bytes: int | None = None
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 7
    num_threads: int | None = None
    kv_cache_dtype: str = "auto"
    exact: bool = False
    pack_cache: str | None = None
    backend: str = "cpu"

    def __post_init__(self) -> None:
        """Raise ConfigError if a value makes no sense."""
        if self.block_size not in (16, 32):
            message = f"block_size is {self.block_size}; expected 16 or 32"
            raise ConfigError(message)
        if self.num_speculative_tokens < 0:
            message = f"num_speculative_tokens is {self.num_speculative_tokens}; expected at least 0"
            raise ConfigError(message)
        if self.backend not in ("cpu", "reference"):
            message = f"backend is {self.backend!r}; expected 'cpu' or 'reference'"
            raise ConfigError(message)
        if self.pack_cache is not None and self.backend != "cpu":
            message = f"pack_cache is for backend 'cpu'; the backend is {self.backend!r}, which packs nothing"
            raise ConfigError(message)
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            expected = " or ".join(", ".join(map(repr, KV_CACHE_DTYPES)).rsplit(", ", 1))
            message = f"kv_cache_dtype is {self.kv_cache_dtype!r}; expected {expected}"
            raise ConfigError(message)
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                message = f"{name} is {value}; expected at least 1"
                raise ConfigError(message)
        if not 0 <= self.prefill_per_decode < math.inf:
            message = f"prefill_per_decode is {self.prefill_per_decode}; expected a number from 0 (no limit) up"
            raise ConfigError(message)
        if self.max_num_seqs > self.max_num_batched_tokens:
            message = (
                f"max_num_seqs is {self.max_num_seqs} but max_num_batched_tokens is {self.max_num_batched_tokens}; "
                "every running sequence needs a token in each step, so lower the first or raise the second"
            )
            raise ConfigError(message)


def check_environment() -> None:
    """Raise ConfigError for a CAUDAL_* variable that nothing reads, so that a typo is not silent."""
    unknown = sorted(name for name in os.environ if name.startswith("CAUDAL_") and name not in ENVIRONMENT)
    if unknown:
        message = f"unknown environment variable {unknown[0]}; known ones are {', '.join(ENVIRONMENT)}"
        raise ConfigError(message)


def cache_dir() -> Path:
    """Return the folder for files that can be made again: CAUDAL_CACHE_DIR, or caudal/ in the user's cache."""
    given = os.environ.get("CAUDAL_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "caudal"
