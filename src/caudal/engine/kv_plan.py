"""How many KV blocks each group gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from caudal.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.config import EngineConfig

# Of the memory that is free once the model is loaded. Address space is all that is taken; pages come as tokens do.
FREE_MEMORY_SHARE = 0.5
FALLBACK_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class KVDemand:
    """What the layers of one group need.

    Attributes:
        bytes_per_token: over all layers of the group.
        window: tokens a query looks back; None is all.
    """

    bytes_per_token: int
    window: int | None


def plan_blocks(
    demands: Sequence[KVDemand], config: EngineConfig, max_model_len: int, mapped_bytes: int = 0
) -> tuple[int, ...]:
    """Return the number of blocks of each group.

    The groups share one budget so that all hold the same number of tokens, but a sliding group never gets more than
    its windows can use, and nobody gets more than max_num_seqs sequences of max_model_len can.

    Args:
        demands: of each group.
        config: of the engine.
        max_model_len: longest sequence.
        mapped_bytes: of weights in the page cache: the system counts them as free, and we need them.

    Raises:
        ConfigError: the budget does not hold one block for every group.
    """
    given = config.kv_cache_bytes
    budget = int(max(0, free_memory_bytes() - mapped_bytes) * FREE_MEMORY_SHARE) if given is None else given
    size = config.block_size
    low, high = 0, config.max_num_seqs * _blocks(max_model_len, size)
    while low < high:
        middle = (low + high + 1) // 2
        blocks = _blocks_of_groups(middle, demands, config)
        needed = sum(n * size * demand.bytes_per_token for n, demand in zip(blocks, demands, strict=True))
        low, high = (middle, high) if needed <= budget else (low, middle - 1)
    if low == 0:
        need = sum(size * demand.bytes_per_token for demand in demands)
        message = (
            f"the KV cache may have {budget} bytes, and one block of every layer needs {need}; raise kv_cache_bytes"
        )
        raise ConfigError(message)
    return _blocks_of_groups(low, demands, config)


def _blocks_of_groups(num_blocks: int, demands: Sequence[KVDemand], config: EngineConfig) -> tuple[int, ...]:
    """Cap the sliding groups at what all sequences' windows and one step's tokens can touch."""
    size = config.block_size
    counts = []
    for demand in demands:
        most = num_blocks
        if demand.window is not None:
            # A window may straddle one block more than it fills, and a step writes ahead of it.
            per_sequence = _blocks(demand.window, size) + 2
            most = config.max_num_seqs * per_sequence + _blocks(config.max_num_batched_tokens, size)
        counts.append(min(num_blocks, most))
    return tuple(counts)


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def free_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that may still be used: MemAvailable, less if a cgroup limit says so.

    Files in the page cache count as free in both, for the system takes their memory back when it is asked for; the
    model's own file is there after it was read.

    Source: proc(5) `/proc/meminfo`; Linux cgroup v2 `memory.max`, `memory.current` and `memory.stat`.
    """
    free = FALLBACK_BYTES
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        return free
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit.isdecimal():
            used = int((cgroup / "memory.current").read_text())
            stats = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
            cached = int(stats.get("inactive_file", 0)) + int(stats.get("active_file", 0))
            free = min(free, max(0, int(limit) - used + cached))
    except OSError:
        return free
    return free
