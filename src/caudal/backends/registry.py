"""Backends by name, imported when one is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from caudal.config import cache_dir
from caudal.errors import ConfigError

if TYPE_CHECKING:
    from caudal.backends.base import Backend
    from caudal.checkpoint import Checkpoint
    from caudal.config import EngineConfig


def make_backend(config: EngineConfig, checkpoint: Checkpoint | None = None) -> Backend:
    """Return the backend that the configuration names.

    Args:
        config: what is asked for.
        checkpoint: the model that will be placed on it; None makes no use of a pack cache.

    Raises:
        ConfigError: it is not available in this installation.
    """
    if config.backend == "reference":
        from caudal.backends.reference import ReferenceBackend  # noqa: PLC0415 - numpy only when asked for

        return ReferenceBackend("f32" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype)
    try:
        from caudal.backends.cpu.cpu_backend import CpuBackend  # noqa: PLC0415 - the native module only when asked for
    except ImportError as error:
        message = f"the native module cannot be loaded ({error}); reinstall caudal with a C++20 compiler at hand"
        raise ConfigError(message) from error
    cache = None
    if config.pack_cache is not None and checkpoint is not None:
        from caudal.backends.cpu.pack_cache import PackCache  # noqa: PLC0415 - as above

        folder = cache_dir() / "packed" if config.pack_cache == "auto" else Path(config.pack_cache).expanduser()
        cache = PackCache(folder, checkpoint.identity(), str(checkpoint.path.resolve()))
    return CpuBackend(
        num_threads=config.num_threads,
        max_tokens=config.max_num_batched_tokens,
        exact=config.exact,
        pack_cache=cache,
        kv_dtype=None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
    )
