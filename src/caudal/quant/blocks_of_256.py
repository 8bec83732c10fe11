"""Formats with super-blocks of 256 values: small integer scales per group, float16 scales per super-block.

Legend: n super-blocks; d, dmin float16 scales; sc, mn integer scales of groups of 16 or 32 values.
Source: the GGUF file format, block layouts of the K formats and of IQ4_XS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caudal.quant.blocks_of_32 import IQ4_LEVELS, nearest_level, nibbles, pack_nibbles
from caudal.quant.format import Format, divide, extreme, half_bytes, halves, to_codes

if TYPE_CHECKING:
    from caudal.quant.format import Bytes, Floats


def planes(packed: Bytes, bits: int) -> Bytes:
    """Unpack [n, h, k] bytes to [n, h, 8/bits, k] codes: plane p is bits [p*bits, (p+1)*bits) of every byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[:, :, None, :] >> shifts) & np.uint8((1 << bits) - 1)


def pack_planes(codes: Bytes, bits: int) -> Bytes:
    """Undo `planes`: [n, h, 8/bits, k] codes to [n, h, k] bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(codes << shifts, axis=2)
    return packed


def unpack_scales_6(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack the [n, 12] bytes of Q4_K and Q5_K to eight 6-bit scales and eight 6-bit minimums.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minimums 0-3 in their low six bits. Bytes 8-11 hold the low nibbles of
    scales and minimums 4-7; their upper two bits are the upper two of bytes 0-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    sc = np.concatenate([first & np.uint8(63), (third & np.uint8(15)) | (first >> np.uint8(6) << np.uint8(4))], axis=1)
    mn = np.concatenate(
        [second & np.uint8(63), (third >> np.uint8(4)) | (second >> np.uint8(6) << np.uint8(4))], axis=1
    )
    return sc.astype(np.float32), mn.astype(np.float32)


def pack_scales_6(sc: Bytes, mn: Bytes) -> Bytes:
    """Undo `unpack_scales_6`."""
    first = sc[:, :4] | (sc[:, 4:] >> np.uint8(4) << np.uint8(6))
    second = mn[:, :4] | (mn[:, 4:] >> np.uint8(4) << np.uint8(6))
    third = (sc[:, 4:] & np.uint8(15)) | ((mn[:, 4:] & np.uint8(15)) << np.uint8(4))
    return np.concatenate([first, second, third], axis=1)


def encode_groups_affine(groups: Floats, top: int, scale_top: int) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Fit d * sc * code - dmin * mn to groups [n, g, k], with codes in [0, top] and sc, mn in [0, scale_top].

    Returns:
        d and dmin as bytes [n, 4], sc [n, g], mn [n, g], codes [n, g, k].
    """
    low = np.minimum(groups.min(axis=2), 0)
    scale = (np.maximum(groups.max(axis=2), 0) - low) / np.float32(top)
    tops: Floats = np.stack([scale.max(axis=1), -low.min(axis=1)], axis=1)
    d_dmin = half_bytes(tops / np.float32(scale_top))
    d, dmin = halves(d_dmin[:, :2]), halves(d_dmin[:, 2:])
    sc = to_codes(divide(scale, d + np.zeros_like(scale)), 0, scale_top)
    mn = to_codes(divide(-low, dmin + np.zeros_like(low)), 0, scale_top)
    shifted = groups + (dmin * mn.astype(np.float32))[..., None]
    codes = to_codes(divide(shifted, (d * sc.astype(np.float32))[..., None] + np.zeros_like(groups)), 0, top)
    return d_dmin, sc, mn, codes


def encode_groups_signed(groups: Floats, low: int, scale_low: int) -> tuple[Bytes, Bytes, Floats]:
    """Fit d * sc * level to groups [n, g, k]; the furthest level is `low`, sc lies in [scale_low, -scale_low).

    Returns:
        d as bytes [n, 2], sc [n, g] in two's complement, and the groups in units of d * sc, to be rounded to levels.
    """
    scale = extreme(groups)[..., 0] / np.float32(low)
    d_bytes = half_bytes(extreme(scale) / np.float32(scale_low))
    d = halves(d_bytes)
    sc = to_codes(divide(scale, d + np.zeros_like(scale)), scale_low, ~scale_low)
    units = divide(groups, (d * sc.view(np.int8).astype(np.float32))[..., None] + np.zeros_like(groups))
    return d_bytes, sc, units


class Q2_K(Format):  # noqa: N801 - the published name
    """sc and mn [16] in nibbles, qs[64], d, dmin; value = d * sc * q - dmin * mn over groups of 16."""

    name = "Q2_K"
    block_elems = 256
    block_bytes = 84

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        n = len(blocks)
        scales = blocks[:, :16]
        d, dmin = halves(blocks[:, 80:82]), halves(blocks[:, 82:84])
        q = planes(blocks[:, 16:80].reshape(n, 2, 32), 2).reshape(n, 16, 16).astype(np.float32)
        slope = d * (scales & np.uint8(15)).astype(np.float32)
        floor = dmin * (scales >> np.uint8(4)).astype(np.float32)
        return (slope[..., None] * q - floor[..., None]).reshape(n, 256)

    def encode(self, blocks: Floats) -> Bytes:
        """Fit each group from its extremes."""
        n = len(blocks)
        d_dmin, sc, mn, codes = encode_groups_affine(blocks.reshape(n, 16, 16), 3, 15)
        qs = pack_planes(codes.reshape(n, 2, 4, 32), 2).reshape(n, 64)
        return np.concatenate([sc | (mn << np.uint8(4)), qs, d_dmin], axis=1)


class Q3_K(Format):  # noqa: N801 - the published name
    """hmask[32], qs[64], sc[16] of 6 bits in 12 bytes, d; value = d * (sc - 32) * (q - 4) over groups of 16.

    The third bit of value 32*i + j is bit i of hmask[j]. The low nibbles of the scales fill bytes 0-7, scale 8 + i
    above scale i; the upper two bits of scale 4*p + i are bits [2p, 2p + 2) of byte 8 + i.
    """

    name = "Q3_K"
    block_elems = 256
    block_bytes = 110

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        n = len(blocks)
        low = planes(blocks[:, 32:96].reshape(n, 2, 32), 2).reshape(n, 8, 32)
        third = planes(blocks[:, None, :32], 1).reshape(n, 8, 32)
        q = (low | (third << np.uint8(2))).reshape(n, 16, 16).astype(np.float32) - np.float32(4)
        packed = blocks[:, 96:108]
        sc = nibbles(packed[:, :8]) | (planes(packed[:, None, 8:], 2).reshape(n, 16) << np.uint8(4))
        slope: Floats = halves(blocks[:, 108:110]) * (sc.astype(np.float32) - np.float32(32))
        return (slope[..., None] * q).reshape(n, 256)

    def encode(self, blocks: Floats) -> Bytes:
        """Fit each group from its value of largest magnitude."""
        n = len(blocks)
        d, sc, units = encode_groups_signed(blocks.reshape(n, 16, 16), -4, -32)
        codes = to_codes(units + np.float32(4), 0, 7)
        hmask = pack_planes((codes >> np.uint8(2)).reshape(n, 1, 8, 32), 1).reshape(n, 32)
        qs = pack_planes((codes & np.uint8(3)).reshape(n, 2, 4, 32), 2).reshape(n, 64)
        raised = sc + np.uint8(32)  # wraps to [0, 64)
        upper = pack_planes((raised >> np.uint8(4)).reshape(n, 1, 4, 4), 2).reshape(n, 4)
        return np.concatenate([hmask, qs, pack_nibbles(raised & np.uint8(15)), upper, d], axis=1)


class Q4_K(Format):  # noqa: N801 - the published name
    """d, dmin, 12 bytes of scales, qs[128]; value = d * sc * q - dmin * mn over groups of 32.

    Each 32 bytes of qs hold group 2i in their low and group 2i + 1 in their high nibbles.
    """

    name = "Q4_K"
    block_elems = 256
    block_bytes = 144

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        n = len(blocks)
        sc, mn = unpack_scales_6(blocks[:, 4:16])
        q = planes(blocks[:, 16:].reshape(n, 4, 32), 4).reshape(n, 8, 32).astype(np.float32)
        slope, floor = halves(blocks[:, :2]) * sc, halves(blocks[:, 2:4]) * mn
        return (slope[..., None] * q - floor[..., None]).reshape(n, 256)

    def encode(self, blocks: Floats) -> Bytes:
        """Fit each group from its extremes."""
        n = len(blocks)
        d_dmin, sc, mn, codes = encode_groups_affine(blocks.reshape(n, 8, 32), 15, 63)
        qs = pack_planes(codes.reshape(n, 4, 2, 32), 4).reshape(n, 128)
        return np.concatenate([d_dmin, pack_scales_6(sc, mn), qs], axis=1)


class Q5_K(Format):  # noqa: N801 - the published name
    """d, dmin, 12 bytes of scales, qh[32], qs[128]: as Q4_K; bit g of qh[j] is the fifth bit of value j of group g."""

    name = "Q5_K"
    block_elems = 256
    block_bytes = 176

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        n = len(blocks)
        sc, mn = unpack_scales_6(blocks[:, 4:16])
        low = planes(blocks[:, 48:].reshape(n, 4, 32), 4).reshape(n, 8, 32)
        fifth = planes(blocks[:, None, 16:48], 1).reshape(n, 8, 32)
        q = (low | (fifth << np.uint8(4))).astype(np.float32)
        slope, floor = halves(blocks[:, :2]) * sc, halves(blocks[:, 2:4]) * mn
        return (slope[..., None] * q - floor[..., None]).reshape(n, 256)

    def encode(self, blocks: Floats) -> Bytes:
        """Fit each group from its extremes."""
        n = len(blocks)
        d_dmin, sc, mn, codes = encode_groups_affine(blocks.reshape(n, 8, 32), 31, 63)
        qh = pack_planes((codes >> np.uint8(4)).reshape(n, 1, 8, 32), 1).reshape(n, 32)
        qs = pack_planes((codes & np.uint8(15)).reshape(n, 4, 2, 32), 4).reshape(n, 128)
        return np.concatenate([d_dmin, pack_scales_6(sc, mn), qh, qs], axis=1)


class Q6_K(Format):  # noqa: N801 - the published name
    """ql[128], qh[64], sc[16] signed, d; value = d * sc * (q - 32) over groups of 16.

    Each half of 128 values has 64 bytes of ql and 32 of qh. Run r of 32 values takes its low nibbles from ql bytes
    32*(r % 2) onwards, low ones for r < 2 and high ones after, and its upper two bits from bits [2r, 2r + 2) of qh.
    """

    name = "Q6_K"
    block_elems = 256
    block_bytes = 210

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        n = len(blocks)
        low = planes(blocks[:, :128].reshape(n, 2, 64), 4).reshape(n, 2, 4, 32)
        upper = planes(blocks[:, 128:192].reshape(n, 2, 32), 2)
        q = (low | (upper << np.uint8(4))).reshape(n, 16, 16).astype(np.float32) - np.float32(32)
        slope = halves(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
        return (slope[..., None] * q).reshape(n, 256)

    def encode(self, blocks: Floats) -> Bytes:
        """Fit each group from its value of largest magnitude."""
        n = len(blocks)
        d, sc, units = encode_groups_signed(blocks.reshape(n, 16, 16), -32, -128)
        codes = to_codes(units + np.float32(32), 0, 63).reshape(n, 2, 4, 32)
        ql = pack_planes((codes & np.uint8(15)).reshape(n, 2, 2, 64), 4).reshape(n, 128)
        qh = pack_planes(codes >> np.uint8(4), 2).reshape(n, 64)
        return np.concatenate([ql, qh, sc, d], axis=1)


class IQ4_XS(Format):  # noqa: N801 - the published name
    """d, upper scale bits (u16), lower scale nibbles [4], qs[128]; value = d * (sc - 32) * IQ4_LEVELS[q] over 32."""

    name = "IQ4_XS"
    block_elems = 256
    block_bytes = 136

    def decode(self, blocks: Bytes) -> Floats:
        """Apply the formula of the class."""
        n = len(blocks)
        low = np.stack([blocks[:, 4:8] & np.uint8(15), blocks[:, 4:8] >> np.uint8(4)], axis=2).reshape(n, 8)
        upper = planes(blocks[:, 2:4, None], 2).reshape(n, 8)
        slope: Floats = halves(blocks[:, :2]) * ((low | (upper << np.uint8(4))).astype(np.float32) - np.float32(32))
        levels = np.array(IQ4_LEVELS, dtype=np.float32)[nibbles(blocks[:, 8:].reshape(n, 8, 16))]
        return (slope[..., None] * levels).reshape(n, 256)

    def encode(self, blocks: Floats) -> Bytes:
        """Fit each group from its value of largest magnitude."""
        n = len(blocks)
        d, sc, units = encode_groups_signed(blocks.reshape(n, 8, 32), -127, -32)
        raised = sc + np.uint8(32)  # wraps to [0, 64)
        upper = pack_planes((raised >> np.uint8(4)).reshape(n, 2, 4, 1), 2).reshape(n, 2)
        low = (raised[:, 0::2] & np.uint8(15)) | ((raised[:, 1::2] & np.uint8(15)) << np.uint8(4))
        qs = pack_nibbles(nearest_level(units, IQ4_LEVELS)).reshape(n, 128)
        return np.concatenate([d, upper, low, qs], axis=1)
