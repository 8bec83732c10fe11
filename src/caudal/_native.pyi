"""Caudal's CPU kernels and step program. Only caudal.backends.cpu imports this module."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACK_LAYOUT_VERSION: int
PACK_SLACK: int

class WeightMemory:
    """Memory for the weights of a model: matrices lie behind one another in huge pages."""

    def __init__(self) -> None: ...

class WeightImage:
    """A file of packed weights, mapped to be used at once."""

    def __init__(self, file: int, size: int) -> None:
        """Map `size` bytes of an open file, which may be closed then. Raises MemoryError if it cannot be mapped."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, read-only."""

    def settle(self) -> int:
        """Moves the bytes into huge pages while others read them; returns how many have moved. Holds no GIL."""

class PackedMatrix:
    """A weight matrix in the layout of the kernels. Its values are undefined until every row has been packed."""

    def __init__(self, format: str, rows: int, cols: int, memory: WeightMemory | None = None) -> None: ...
    @staticmethod
    def on(format: str, rows: int, cols: int, data: NDArray[np.uint8]) -> PackedMatrix:
        """A matrix that reads packed bytes where they are: nbytes + PACK_SLACK of them, at a multiple of 64."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """The packed bytes, read-only."""

    def pack(self, data: NDArray[np.uint8], first_row: int, num_rows: int, threads: int = 1) -> None:
        """Packs rows from the bytes of a GGUF tensor, which are not kept. Strips begin at multiples of 16 rows."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def dequantize_row(self, row: int, isa: str | None = None) -> NDArray[np.float32]: ...
    def dequantize(self, isa: str | None = None) -> NDArray[np.float32]: ...

def matmul(
    x: NDArray[np.float32],
    matrix: PackedMatrix,
    isa: str | None = None,
    exact: bool = False,
    threads_split: Sequence[int] = [],
) -> NDArray[np.float32]:
    """x [T, K] times the matrix's transpose -> [T, rows], range of panels by range of panels."""

def available_isas() -> list[str]:
    """available_isas() -> list[str]: what can run here, best first."""

def default_isa() -> str:
    """default_isa() -> str: the best, or what CAUDAL_ISA names."""

class Vector:
    """A float32 vector that kernels read."""

    def __init__(self, values: NDArray[np.float32]) -> None: ...

class ThreadPool:
    """Threads that run steps together; the caller is one of them."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class RopeTable:
    """A rotary embedding."""

    def __init__(
        self, inv_freq: Sequence[float], rotary_dims: int, interleaved: bool, attention_factor: float
    ) -> None: ...

class MachineLimits:
    """What the machine can do just now, with all threads of a pool."""

    def __init__(self, isa: str, pool: ThreadPool) -> None: ...
    def read_rate(self) -> float:
        """Bytes per second of reading memory that no cache holds."""

    def byte_product_rate(self) -> float:
        """Products of bytes per second."""

class KVCache:
    """Paged keys and values: layers are (group, (num_kv_heads, head_size))."""

    def __init__(
        self, layers: Sequence[tuple[int, tuple[int, int]]], num_blocks: Sequence[int], block_size: int, type: str
    ) -> None: ...
    def block_bytes(self, group: int) -> int: ...

class Program:
    """A forward pass recorded once and run every step; values are indices."""

    def __init__(self, isa: str, pool: ThreadPool, cache: KVCache, max_tokens: int, exact: bool) -> None: ...
    def embedding(self, matrix: PackedMatrix, source: str, scale: float) -> int: ...
    def linear(self, matrices: Sequence[PackedMatrix], biases: Sequence[Vector | None], x: int) -> list[int]: ...
    def rms_norm(self, x: int, weight: Vector | None, group: int, eps: float) -> int: ...
    def layer_norm(self, x: int, weight: Vector, bias: Vector, eps: float) -> int: ...
    def rope(self, x: int, table: RopeTable, head_size: int) -> int: ...
    def attention(
        self,
        q: int,
        k: int,
        v: int,
        layer: int,
        num_heads: int,
        scale: float,
        softcap: float,
        window: int,
        is_causal: bool,
    ) -> int: ...
    def glu(self, gate: int, up: int, activation: str) -> int: ...
    def activate(self, x: int, activation: str) -> int: ...
    def add(self, x: int, y: int) -> int: ...
    def softcap(self, x: int, cap: float) -> int: ...
    def logit_rows(self, x: int) -> int: ...
    def sequence_means(self, x: int) -> int: ...
    def finish(self, logits: int) -> None: ...
    def width(self, value: int) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...
    @property
    def maxima_at(self) -> int:
        """Where a row of logits has the maxima of its blocks, in floats from its beginning; 0: nowhere."""

    def run(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        query_starts: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        block_tables: Sequence[NDArray[np.int32]],
        slot_mapping: Sequence[NDArray[np.int32]],
        logit_rows: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """run(...) -> float32[L, V], valid until the next run. Holds no GIL while it computes."""

class Sampler:
    """Chooses tokens; a row's choice depends on that row alone."""

    def __init__(self, isa: str, pool: ThreadPool) -> None: ...
    def sample(
        self, logits: NDArray[np.float32], batch: object, maxima_at: int = 0
    ) -> tuple[Any, Any, Any, Any, Any]:
        """sample(logits: float32[N, V], batch: SamplingBatch) -> (token_ids, logprobs, ranks, top_ids, top_logprobs)

        maxima_at is the program's, if the logits are what its last run gave.
        """

    @staticmethod
    def uniform(seed: int, position: int) -> float:
        """uniform(seed, position) -> float in [0, 1): the random number of a position."""
