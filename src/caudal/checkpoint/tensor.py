"""A stored tensor: packed bytes and the name of the format that reads them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from caudal.quant import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tensor:
    """Rows are output features; blocks of a quantised format run along the last axis.

    Attributes:
        name: as stored.
        format: a key of caudal.quant.FORMATS, such as "Q4_K" or "F32".
        shape: row-major, (out_features, in_features) for a matrix, (n,) for a vector.
        data: uint8, C-contiguous, read-only; a view of the mapped file.
        mapping: the file that `data` is a view of, if it is mapped.
        start: where `data` begins in the mapping.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    mapping: mmap.mmap | None = field(default=None, repr=False, compare=False)
    start: int = field(default=0, repr=False, compare=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (of the last axis)."""
        block = FORMATS[self.format]
        return self.shape[-1] // block.block_elems * block.block_bytes

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows [start, stop) of a matrix, without copying."""
        step = self.row_bytes
        return Tensor(
            f"{self.name}[{start}:{stop}]",
            self.format,
            (stop - start, *self.shape[1:]),
            self.data[start * step : stop * step],
            self.mapping,
            self.start + start * step,
        )

    def elements(self, start: int, stop: int) -> Tensor:
        """Return elements [start, stop) of a vector, as float32."""
        values = self.dequantize().reshape(-1)[start:stop]
        return Tensor(f"{self.name}[{start}:{stop}]", "F32", (stop - start,), values.view("u1"))

    def plus(self, offset: float) -> Tensor:
        """Return the tensor with a number added to every value, as float32."""
        values = self.dequantize() + np.float32(offset)
        return Tensor(self.name, "F32", self.shape, values.reshape(-1).view("u1"))

    def release(self) -> None:
        """Give back the memory that reading the tensor took. It stays usable: the file is read again when needed."""
        if self.mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        # Whole pages, neighbours' bytes included: their loss costs a read, keeping them would cost memory.
        first = self.start // mmap.PAGESIZE * mmap.PAGESIZE
        self.mapping.madvise(mmap.MADV_DONTNEED, first, self.start + self.data.nbytes - first)

    def dequantize(self) -> NDArray[np.float32]:
        """Return the values as float32 in the tensor's shape. This is the oracle; kernels never call it."""
        return FORMATS[self.format].dequantize(self.data).reshape(self.shape)
