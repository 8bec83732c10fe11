"""A stored tensor: packed bytes and the name of the format that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.quant import FORMATS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tensor:
    """Rows are output features; blocks of a quantised format run along the last axis.

    Attributes:
        name: as stored.
        format: a key of caudal.quant.FORMATS, such as "Q4_K" or "F32".
        shape: row-major, (out_features, in_features) for a matrix, (n,) for a vector.
        data: uint8, C-contiguous, read-only; a view of the mapped file.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

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
        )

    def dequantize(self) -> NDArray[np.float32]:
        """Return the values as float32 in the tensor's shape. This is the oracle; kernels never call it."""
        return FORMATS[self.format].dequantize(self.data).reshape(self.shape)
