"""What the machine can do at most, measured when it is asked for."""

from __future__ import annotations

from caudal import _native

# The machine's limit is the best of so many: what else runs can only slow a measurement down.
REPEATS = 5


class MachineLimits:
    """Holds memory that no cache holds, and threads of its own.

    Args:
        isa: a name from available_isas().
        num_threads: that work together.
    """

    def __init__(self, isa: str, num_threads: int) -> None:
        self._limits = _native.MachineLimits(isa, _native.ThreadPool(num_threads))

    def read_rate(self) -> float:
        """Return bytes per second of reading memory, now."""
        return max(self._limits.read_rate() for _ in range(REPEATS))

    def byte_product_rate(self) -> float:
        """Return multiplications of a weight's byte with an activation's per second, now."""
        return max(self._limits.byte_product_rate() for _ in range(REPEATS))
