"""Formats with blocks of 32 values and one scale per block.

In every 4 and 5 bit format byte j of `qs` holds value j in its low nibble and value j + 16 in its high nibble.
Legend: d scale, m minimum (both float16), qs codes, qh fifth bits (bit j belongs to value j), e exponent.
Source: the GGUF file format, block layouts; OCP Microscaling Formats (MX) 1.0, sections 5.1 and 5.3.3 (MXFP4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caudal.quant.format import Format, divide, extreme, half_bytes, halves, to_codes

if TYPE_CHECKING:
    from caudal.quant.format import Bytes, Floats

# The sixteen levels of IQ4_NL and IQ4_XS, and of MXFP4 doubled so that they are whole numbers.
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def nibbles(qs: Bytes) -> Bytes:
    """Unpack [n, k] bytes to [n, 2k] codes: all low nibbles, then all high ones."""
    return np.concatenate([qs & np.uint8(15), qs >> np.uint8(4)], axis=-1)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Undo `nibbles`."""
    half = codes.shape[-1] // 2
    return codes[..., :half] | (codes[..., half:] << np.uint8(4))


def fifth_bits(qh: Bytes) -> Bytes:
    """Unpack [n, 4] bytes to [n, 32] values of 0 or 16."""
    return np.unpackbits(qh, axis=-1, bitorder="little") << np.uint8(4)


def pack_fifth_bits(codes: Bytes) -> Bytes:
    """Undo `fifth_bits` for codes of five bits."""
    return np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def nearest_level(values: Floats, levels: tuple[int, ...]) -> Bytes:
    """Return the index of the level nearest to each value; the lower index when two are as near."""
    order = np.argsort(levels, kind="stable")
    ranked = np.array(levels, dtype=np.float32)[order]
    middles = (ranked[1:] + ranked[:-1]) / 2
    return order[np.searchsorted(middles, values)].astype(np.uint8)


class Q4_0(Format):  # noqa: N801 - the published name
    """d, qs[16]; value = d * (q - 8)."""

    name = "Q4_0"
    block_elems = 32
    block_bytes = 18

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        q = nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)
        return halves(blocks[:, :2]) * q

    def encode(self, blocks: Floats) -> Bytes:
        """Let the value of largest magnitude have code 0, which reaches furthest."""
        d = half_bytes(extreme(blocks) / np.float32(-8))
        codes = to_codes(divide(blocks, halves(d) + np.zeros_like(blocks)) + np.float32(8), 0, 15)
        return np.concatenate([d, pack_nibbles(codes)], axis=1)


class Q4_1(Format):  # noqa: N801 - the published name
    """d, m, qs[16]; value = d * q + m."""

    name = "Q4_1"
    block_elems = 32
    block_bytes = 20

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        return halves(blocks[:, :2]) * nibbles(blocks[:, 4:]).astype(np.float32) + halves(blocks[:, 2:4])

    def encode(self, blocks: Floats) -> Bytes:
        """Spread the codes from the block's minimum to its maximum."""
        d_m, codes = encode_affine(blocks, 15)
        return np.concatenate([d_m, pack_nibbles(codes)], axis=1)


class Q5_0(Format):  # noqa: N801 - the published name
    """d, qh[4], qs[16]; value = d * (q - 16)."""

    name = "Q5_0"
    block_elems = 32
    block_bytes = 22

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        q = nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])
        return halves(blocks[:, :2]) * (q.astype(np.float32) - np.float32(16))

    def encode(self, blocks: Floats) -> Bytes:
        """Let the value of largest magnitude have code 0, which reaches furthest."""
        d = half_bytes(extreme(blocks) / np.float32(-16))
        codes = to_codes(divide(blocks, halves(d) + np.zeros_like(blocks)) + np.float32(16), 0, 31)
        return np.concatenate([d, pack_fifth_bits(codes), pack_nibbles(codes & np.uint8(15))], axis=1)


class Q5_1(Format):  # noqa: N801 - the published name
    """d, m, qh[4], qs[16]; value = d * q + m."""

    name = "Q5_1"
    block_elems = 32
    block_bytes = 24

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        q = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])
        return halves(blocks[:, :2]) * q.astype(np.float32) + halves(blocks[:, 2:4])

    def encode(self, blocks: Floats) -> Bytes:
        """Spread the codes from the block's minimum to its maximum."""
        d_m, codes = encode_affine(blocks, 31)
        return np.concatenate([d_m, pack_fifth_bits(codes), pack_nibbles(codes & np.uint8(15))], axis=1)


class Q8_0(Format):  # noqa: N801 - the published name
    """d, qs[32] signed; value = d * q."""

    name = "Q8_0"
    block_elems = 32
    block_bytes = 34

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        return halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)

    def encode(self, blocks: Floats) -> Bytes:
        """Let the largest magnitude have code 127 or -127."""
        d = half_bytes(np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127))
        codes = to_codes(divide(blocks, halves(d) + np.zeros_like(blocks)), -127, 127)
        return np.concatenate([d, codes], axis=1)


class IQ4_NL(Format):  # noqa: N801 - the published name
    """d, qs[16]; value = d * IQ4_LEVELS[q]."""

    name = "IQ4_NL"
    block_elems = 32
    block_bytes = 18

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        return halves(blocks[:, :2]) * np.array(IQ4_LEVELS, dtype=np.float32)[nibbles(blocks[:, 2:])]

    def encode(self, blocks: Floats) -> Bytes:
        """Let the value of largest magnitude have the level -127."""
        d = half_bytes(extreme(blocks) / np.float32(-127))
        codes = nearest_level(divide(blocks, halves(d) + np.zeros_like(blocks)), IQ4_LEVELS)
        return np.concatenate([d, pack_nibbles(codes)], axis=1)


class MXFP4(Format):
    """e, qs[16]; value = 2^(e - 128) * MXFP4_LEVELS[q], which is 2^(e - 127) times an E2M1 number."""

    name = "MXFP4"
    block_elems = 32
    block_bytes = 17

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class; an exponent of 255 is 2^127 as in GGUF, not a NaN as in OCP."""
        scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
        return scale * np.array(MXFP4_LEVELS, dtype=np.float32)[nibbles(blocks[:, 1:])]

    def encode(self, blocks: Floats) -> Bytes:
        """Take the exponent of the largest magnitude less 2, that of E2M1's largest number (OCP MX 6.3)."""
        _, exponent = np.frexp(np.abs(blocks).max(axis=1, keepdims=True))
        e = np.clip(exponent - 1 - 2 + 127, 0, 254)
        codes = nearest_level(np.ldexp(blocks, 128 - e), MXFP4_LEVELS)
        return np.concatenate([e.astype(np.uint8), pack_nibbles(codes)], axis=1)


def encode_affine(blocks: Floats, top: int) -> tuple[Bytes, Bytes]:
    """Return the bytes of d and m, and codes in [0, top], such that d * code + m is near each value."""
    low = blocks.min(axis=1, keepdims=True)
    d_m = half_bytes(np.concatenate([(blocks.max(axis=1, keepdims=True) - low) / np.float32(top), low], axis=1))
    d, m = halves(d_m[:, :2]), halves(d_m[:, 2:])
    return d_m, to_codes(divide(blocks - m, d + np.zeros_like(blocks)), 0, top)
