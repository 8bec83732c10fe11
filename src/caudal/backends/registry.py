"""Backends by name, imported when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import ConfigError

if TYPE_CHECKING:
    from caudal.backends.base import Backend
    from caudal.config import EngineConfig


def make_backend(config: EngineConfig) -> Backend:
    """Return the backend that the configuration names.

    Raises:
        ConfigError: it is not available in this installation.
    """
    if config.backend == "reference":
        from caudal.backends.reference import ReferenceBackend  # noqa: PLC0415 - numpy only when asked for

        return ReferenceBackend()
    try:
        from caudal.backends.cpu.cpu_backend import CpuBackend  # noqa: PLC0415 - the native module only when asked for
    except ImportError as error:
        message = f"the native module cannot be loaded ({error}); reinstall caudal with a C++20 compiler at hand"
        raise ConfigError(message) from error
    return CpuBackend(num_threads=config.num_threads, max_tokens=config.max_num_batched_tokens, exact=config.exact)
