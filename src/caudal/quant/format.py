"""What every weight format offers: its block, and float32 to and from its bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

CHUNK_ELEMS = 1 << 20


class Format(ABC):
    """A weight format: `block_elems` neighbouring values are stored together in `block_bytes` bytes.

    It knows bytes and nothing of files or devices. `dequantize` computes in float32 in the order that the format's
    specification writes, so it is the oracle for every kernel. `quantize` makes valid blocks by the direct method
    (the best scale of each block from its extremes); it searches for no better ones.

    Attributes:
        name: as GGUF spells it, a key of caudal.quant.FORMATS.
        block_elems: values in a block.
        block_bytes: bytes of a block.
    """

    name: ClassVar[str]
    block_elems: ClassVar[int]
    block_bytes: ClassVar[int]

    def dequantize(self, data: Bytes) -> Floats:
        """Return the values of whole blocks as a new 1-D float32 array.

        Infinite or NaN scales give infinite or NaN values, silently.

        Raises:
            ValueError: if the bytes are not a whole number of blocks.
        """
        if data.size % self.block_bytes:
            message = f"{self.name}: expected a multiple of {self.block_bytes} bytes, got {data.size}"
            raise ValueError(message)
        blocks = data.reshape(-1, self.block_bytes)
        out = np.empty((len(blocks), self.block_elems), dtype=np.float32)
        step = max(1, CHUNK_ELEMS // self.block_elems)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(0, len(blocks), step):
                out[start : start + step] = self.decode(blocks[start : start + step])
        return out.reshape(-1)

    def quantize(self, values: Floats) -> Bytes:
        """Return finite values as whole blocks, a new 1-D uint8 array.

        Raises:
            ValueError: if the values are not a whole number of blocks.
        """
        if values.size % self.block_elems:
            message = f"{self.name}: expected a multiple of {self.block_elems} values, got {values.size}"
            raise ValueError(message)
        blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, self.block_elems)
        out = np.empty((len(blocks), self.block_bytes), dtype=np.uint8)
        step = max(1, CHUNK_ELEMS // self.block_elems)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(0, len(blocks), step):
                out[start : start + step] = self.encode(blocks[start : start + step])
        return out.reshape(-1)

    @abstractmethod
    def decode(self, blocks: Bytes) -> Floats:
        """Decode blocks [n, block_bytes] to values [n, block_elems]."""

    @abstractmethod
    def encode(self, blocks: Floats) -> Bytes:
        """Encode values [n, block_elems] to blocks [n, block_bytes]."""


def halves(data: Bytes) -> Floats:
    """Read pairs of bytes along the last axis as little-endian float16, widened to float32."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def half_bytes(values: Floats) -> Bytes:
    """Round to float16 and return the bytes: [n, k] float32 to [n, 2k] uint8."""
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def divide(values: Floats, by: Floats) -> Floats:
    """Divide; where the divisor is zero the quotient is zero."""
    quotient: Floats = np.divide(values, by, out=np.zeros_like(values), where=by != 0)
    return quotient


def to_codes(values: Floats, low: int, high: int) -> Bytes:
    """Round to the nearest whole number within [low, high] and return it as a byte (two's complement)."""
    return np.clip(np.rint(values), low, high).astype(np.int16).astype(np.uint8)


def extreme(values: Floats) -> Floats:
    """Return the signed value of largest magnitude along the last axis, kept as an axis of length one."""
    at = np.abs(values).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(values, at, axis=-1)
