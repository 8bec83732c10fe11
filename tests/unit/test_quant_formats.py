"""Weight formats: bytes by hand, an independent reader, bounds, and what blocks promise."""

import numpy as np
import pytest

from caudal.quant import FORMATS

# format: (bytes of a block, root mean square error of a round trip of standard normal values)
TABLE = {
    "F32": (1, 4, 0.0),
    "F16": (1, 2, 3e-4),
    "BF16": (1, 2, 3e-3),
    "Q4_0": (32, 18, 0.095),
    "Q4_1": (32, 20, 0.085),
    "Q5_0": (32, 22, 0.047),
    "Q5_1": (32, 24, 0.042),
    "Q8_0": (32, 34, 0.006),
    "Q2_K": (256, 84, 0.36),
    "Q3_K": (256, 110, 0.165),
    "Q4_K": (256, 144, 0.087),
    "Q5_K": (256, 176, 0.042),
    "Q6_K": (256, 210, 0.020),
    "IQ4_NL": (32, 18, 0.090),
    "IQ4_XS": (256, 136, 0.090),
    "MXFP4": (32, 17, 0.125),
}
every_format = pytest.mark.parametrize("name", TABLE)


def half(value):
    return np.array([value], "<f2").tobytes()


def decoded(name, raw):
    return FORMATS[name].dequantize(np.frombuffer(raw, np.uint8))


def test_the_table_is_complete_and_fixed():
    assert set(FORMATS) == set(TABLE)
    with pytest.raises(TypeError):
        FORMATS["Q9"] = None


@every_format
def test_sizes(name):
    assert (FORMATS[name].block_elems, FORMATS[name].block_bytes) == TABLE[name][:2]
    assert FORMATS[name].name == name


@every_format
def test_round_trip_bound(name):
    values = np.random.default_rng(7).standard_normal(256 * 64).astype(np.float32)
    packed = FORMATS[name].quantize(values)
    assert packed.dtype == np.uint8
    assert packed.size == values.size // TABLE[name][0] * TABLE[name][1]
    error = FORMATS[name].dequantize(packed) - values
    assert np.sqrt(np.mean(error**2)) <= TABLE[name][2]


@every_format
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_error_follows_the_scale_of_the_values(name, scale):
    values = np.random.default_rng(8).standard_normal(256 * 16).astype(np.float32) * np.float32(scale)
    error = FORMATS[name].dequantize(FORMATS[name].quantize(values)) - values
    assert np.sqrt(np.mean(error**2)) <= 1.3 * TABLE[name][2] * scale + 1e-6


@every_format
def test_zeros_stay_zeros(name):
    assert not FORMATS[name].dequantize(FORMATS[name].quantize(np.zeros(512, np.float32))).any()


@every_format
@pytest.mark.parametrize("value", [-2.5, 0.75])
def test_constant_blocks_survive(name, value):
    values = np.full(256, value, np.float32)
    assert np.allclose(FORMATS[name].dequantize(FORMATS[name].quantize(values)), value, rtol=0.21)


@every_format
def test_rows_commute_with_dequantize(name):
    block = FORMATS[name]
    rng = np.random.default_rng(9)
    packed = rng.integers(0, 256, (6, 512 // block.block_elems * block.block_bytes), np.uint8)
    whole = block.dequantize(packed.reshape(-1)).reshape(6, 512)
    for rows in ([4], [5, 0, 3]):
        assert np.array_equal(block.dequantize(packed[rows].reshape(-1)).reshape(-1, 512), whole[rows], equal_nan=True)


@every_format
def test_quantized_values_are_fixed_points(name):
    """Bytes that quantize made decode to values whose own encoding decodes to nearly the same."""
    values = np.random.default_rng(10).standard_normal(256 * 8).astype(np.float32)
    once = FORMATS[name].dequantize(FORMATS[name].quantize(values))
    twice = FORMATS[name].dequantize(FORMATS[name].quantize(once))
    assert np.sqrt(np.mean((twice - once) ** 2)) <= max(TABLE[name][2], 1e-9)


@every_format
def test_any_bytes_decode_as_the_gguf_package_decodes_them(name):
    quants = pytest.importorskip(
        "gguf.quants",
        reason="the gguf package, an independent reader, is not installed: runs with the test extra, as in CI",
    )
    constants = pytest.importorskip(
        "gguf.constants", reason="the gguf package is not installed: runs with the test extra, as in CI"
    )
    raw = np.random.default_rng(11).integers(0, 256, FORMATS[name].block_bytes * 300, np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, constants.GGMLQuantizationType[name]).reshape(-1)
    assert np.array_equal(FORMATS[name].dequantize(raw), expected, equal_nan=True)


@every_format
def test_the_result_is_a_new_writable_array(name):
    raw = np.zeros(FORMATS[name].block_bytes * 4, np.uint8)
    raw.flags.writeable = False
    out = FORMATS[name].dequantize(raw)
    assert out.dtype == np.float32
    assert out.ndim == 1
    assert out.flags.writeable
    assert not np.shares_memory(out, raw)


@every_format
def test_bytes_at_odd_addresses(name):
    raw = np.random.default_rng(12).integers(0, 256, FORMATS[name].block_bytes * 4 + 1, np.uint8)
    assert np.array_equal(FORMATS[name].dequantize(raw[1:]), FORMATS[name].dequantize(raw[1:].copy()), equal_nan=True)


@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name][1] > 1])
def test_partial_blocks_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: expected a multiple of {TABLE[name][1]} bytes, got 5"):
        FORMATS[name].dequantize(np.zeros(5, np.uint8))
    if TABLE[name][0] > 1:
        with pytest.raises(ValueError, match=f"{name}: expected a multiple of {TABLE[name][0]} values, got 5"):
            FORMATS[name].quantize(np.zeros(5, np.float32))


def test_many_blocks_equal_the_same_blocks_alone():
    """More values than one chunk of the conversion holds."""
    values = np.random.default_rng(13).standard_normal((1 << 20) + 256 * 3).astype(np.float32)
    block = FORMATS["Q6_K"]
    packed = block.quantize(values)
    assert np.array_equal(packed[-210 * 3 :], block.quantize(values[-256 * 3 :]))
    assert np.array_equal(block.dequantize(packed)[-256 * 3 :], block.dequantize(packed[-210 * 3 :]))


# Bytes by hand, from the published layouts.


def test_golden_q4_0():
    out = decoded("Q4_0", half(0.5) + bytes([0xF0, 0x8A] + [0x88] * 14))
    assert out[:2].tolist() == [-4.0, 1.0]
    assert out[16:18].tolist() == [3.5, 0.0]
    assert not out[2:16].any()


def test_golden_q4_1():
    out = decoded("Q4_1", half(2.0) + half(-1.0) + bytes([0x3F] + [0] * 15))
    assert out[0] == 29.0
    assert out[16] == 5.0
    assert out[1] == -1.0


def test_golden_q5_0():
    out = decoded("Q5_0", half(1.0) + (1 | 1 << 31).to_bytes(4, "little") + bytes([0x02] + [0] * 14 + [0xF0]))
    assert out[[0, 1, 16, 31]].tolist() == [2.0, -16.0, -16.0, 15.0]


def test_golden_q5_1():
    out = decoded("Q5_1", half(1.0) + half(0.5) + (1 << 16).to_bytes(4, "little") + bytes([0x32] + [0] * 15))
    assert out[[0, 1, 16]].tolist() == [2.5, 0.5, 19.5]


def test_golden_q8_0():
    out = decoded("Q8_0", half(0.25) + bytes([0x80, 0x7F, 0xFF] + [0] * 29))
    assert out[:3].tolist() == [-32.0, 31.75, -0.25]


def test_golden_bf16_and_f16():
    assert decoded("BF16", bytes([0x80, 0x3F, 0x20, 0xC0])).tolist() == [1.0, -2.5]
    assert decoded("F16", bytes([0x00, 0x3C, 0x00, 0xC1])).tolist() == [1.0, -2.5]


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001], np.uint32).view(np.float32)
    assert FORMATS["BF16"].quantize(values).view("<u2").tolist()[:3] == [0x3F80, 0x3F82, 0x3F81]
    assert np.isnan(FORMATS["BF16"].dequantize(FORMATS["BF16"].quantize(values))[3])


def test_golden_mxfp4():
    out = decoded("MXFP4", bytes([128, 0xF1, 0x08] + [0] * 14))
    assert out[[0, 16, 1, 17]].tolist() == [1.0, -12.0, 0.0, 0.0]


def test_golden_q4_k():
    # Scale 5 is 0b10_0011 = 35, minimum 5 is 0b01_0010 = 18: low nibbles in byte 9, upper bits in bytes 1 and 5.
    scales = bytearray(12)
    scales[1], scales[5], scales[9] = 0b10_000001, 0b01_000010, 0x23
    qs = bytearray(128)
    qs[2 * 32] = 0x40  # value 0 of group 5
    out = decoded("Q4_K", half(2.0) + half(0.5) + bytes(scales) + bytes(qs)).reshape(8, 32)
    assert out[5, 0] == 2 * 35 * 4 - 0.5 * 18
    assert out[5, 1] == -9.0
    assert out[1, 0] == -0.5 * 2
    assert not out[[0, 2, 3, 4, 6, 7]].any()


def test_golden_q5_k():
    scales = bytearray(12)
    scales[3] = 3
    qh, qs = bytearray(32), bytearray(128)
    qh[7] = 1 << 3
    qs[32 + 7] = 0x90  # value 7 of group 3
    out = decoded("Q5_K", half(1.0) + half(1.0) + bytes(scales) + bytes(qh) + bytes(qs)).reshape(8, 32)
    assert out[3, 7] == 3 * (16 + 9)
    assert np.count_nonzero(out) == 1


def test_golden_q6_k():
    ql, qh, scales = bytearray(128), bytearray(64), bytearray(16)
    # Half 1, run 3 (values 96-127 of the half), value 20: high nibble of ql[64 + 32 + 20], bits 6-7 of qh[32 + 20].
    ql[64 + 52], qh[32 + 20], scales[8 + 7] = 0x50, 0b11 << 6, 0xFE
    out = decoded("Q6_K", bytes(ql) + bytes(qh) + bytes(scales) + half(0.5))
    assert out[128 + 96 + 20] == 0.5 * -2 * (0x35 - 32)
    assert np.flatnonzero(out).tolist() == list(range(128 + 96 + 16, 256))


def test_golden_q2_k():
    scales, qs = bytearray(16), bytearray(64)
    scales[9] = 0x21
    qs[32 + 16] = 0b11  # value 16 of half 1, which is group 9
    out = decoded("Q2_K", bytes(scales) + bytes(qs) + half(4.0) + half(1.0))
    assert out[128 + 16] == 4 * 1 * 3 - 2
    assert out[128 + 17] == -2
    assert np.flatnonzero(out).tolist() == list(range(128 + 16, 128 + 32))


def test_golden_q3_k():
    hmask, qs, scales = bytearray(32), bytearray(64), bytearray([0] * 8 + [0b10101010] * 4)
    scales[1] = 0x50  # scale 9: low nibble 5, upper bits 2, so 37 - 32
    hmask[16] = 1 << 4
    qs[32 + 16] = 0b10  # value 16 of half 1
    out = decoded("Q3_K", bytes(hmask) + bytes(qs) + bytes(scales) + half(1.0))
    assert out[128 + 16] == 5 * 2
    assert out[128 + 17] == 5 * -4
    assert np.flatnonzero(out).tolist() == list(range(128 + 16, 128 + 32))


def test_golden_iq4():
    out = decoded("IQ4_NL", half(1.0) + bytes([0xF0] + [0x88] * 15))
    assert out[[0, 16, 1]].tolist() == [-127.0, 113.0, 1.0]
    # Group 5: nibble 5 of scales_l (high of byte 2), bits 10-11 of scales_h.
    raw = half(1.0) + (0b11 << 10).to_bytes(2, "little") + bytes([0, 0, 0x40, 0]) + bytes([0x77] * 128)
    out = decoded("IQ4_XS", raw).reshape(8, 32)
    assert (out[5] == (0x34 - 32) * -10).all()
    assert (out[4] == -32 * -10).all()
