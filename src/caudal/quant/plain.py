"""Formats without blocks: a value is a number.

Source: IEEE 754-2019 (binary32, binary16); bfloat16 is the upper half of binary32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caudal.quant.format import Format

if TYPE_CHECKING:
    from caudal.quant.format import Bytes, Floats


class F32(Format):
    """Little-endian float32."""

    name = "F32"
    block_elems = 1
    block_bytes = 4

    def decode(self, blocks: Bytes) -> Floats:
        """Read the bytes as they are."""
        return np.ascontiguousarray(blocks).view("<f4")

    def encode(self, blocks: Floats) -> Bytes:
        """Write the bytes as they are."""
        return blocks.astype("<f4").view(np.uint8)


class F16(Format):
    """Little-endian float16."""

    name = "F16"
    block_elems = 1
    block_bytes = 2

    def decode(self, blocks: Bytes) -> Floats:
        """Widen; exact."""
        return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)

    def encode(self, blocks: Floats) -> Bytes:
        """Round to nearest even; values past 65504 become infinite."""
        return blocks.astype("<f2").view(np.uint8)


class BF16(Format):
    """Little-endian bfloat16."""

    name = "BF16"
    block_elems = 1
    block_bytes = 2

    def decode(self, blocks: Bytes) -> Floats:
        """Widen; exact."""
        upper = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
        return (upper << np.uint32(16)).view(np.float32)

    def encode(self, blocks: Floats) -> Bytes:
        """Round to nearest even; a NaN stays one."""
        bits = blocks.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
        return np.where(np.isnan(blocks), quiet, rounded).astype("<u2").view(np.uint8)
