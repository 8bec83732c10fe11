"""The native products against the formats' numpy definitions, for every format and instruction set."""

import numpy as np
import pytest
from bounds import (
    HALF_FIELDS,
    PACKED_FORMATS,
    SCALE_ELEMS,
    assert_product,
    from_bytes,
    quantized_rows,
    random_matrix,
    uniform_matrix,
)

from caudal import _native
from caudal.quant import FORMATS

ISAS = tuple(_native.available_isas())
ROW_COUNTS = (1, 2, 5, 6, 7, 8, 13, 33)


def cols_of(name):
    return {32: (32, 576, 1120), 256: (256, 1536), None: (1, 67, 640)}[SCALE_ELEMS[name]]


def rows_of(num_rows, cols, seed=1):
    return np.random.default_rng(seed).standard_normal((num_rows, cols), dtype=np.float32)


def rows_with_outliers(num_rows, cols, seed=1):
    """Normal values, and here and there a value that stands out; each row has others."""
    x = rows_of(num_rows, cols, seed)
    rng = np.random.default_rng(seed + 1)
    x[rng.random(x.shape) < 0.004] *= 60
    x[::3, 0] = 90
    return x


def packed(stored, threads=1):
    rows, cols = stored.values.shape
    matrix = _native.PackedMatrix(stored.name, rows, cols)
    matrix.pack(stored.data, 0, rows, threads)
    return matrix


@pytest.fixture(params=ISAS)
def isa(request):
    return request.param


@pytest.fixture(params=PACKED_FORMATS)
def name(request):
    return request.param


def test_there_is_a_scalar_reference():
    assert ISAS[-1] == "scalar"


def test_rows_come_back_as_the_format_defines_them(isa, name):
    for cols in cols_of(name):
        stored = random_matrix(name, 21, cols)
        matrix = packed(stored)
        assert np.array_equal(matrix.dequantize(isa), stored.values)
        assert np.array_equal(matrix.dequantize_row(20, isa), stored.values[20])


def test_products_with_int8_activations(isa, name):
    for cols in cols_of(name):
        stored = random_matrix(name, 37, cols)
        matrix = packed(stored)
        for num_rows in ROW_COUNTS:
            for x in (rows_of(num_rows, cols), rows_with_outliers(num_rows, cols)):
                assert_product(_native.matmul(x, matrix, isa), quantized_rows(x, name), stored.values)


def test_exact_products(isa, name):
    for cols in cols_of(name):
        stored = random_matrix(name, 37, cols)
        matrix = packed(stored)
        for num_rows in ROW_COUNTS:
            x = rows_of(num_rows, cols)
            assert_product(_native.matmul(x, matrix, isa, exact=True), x, stored.values)


@pytest.mark.parametrize("exact", [False, True])
def test_a_row_has_the_same_bits_in_any_company_and_split(isa, name, exact):
    cols = cols_of(name)[-1]
    matrix = packed(random_matrix(name, 80, cols))
    x = rows_with_outliers(33, cols)
    together = _native.matmul(x, matrix, isa, exact=exact)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 12, 13, 24, 25, 32):
        assert np.array_equal(_native.matmul(x[:num_rows], matrix, isa, exact=exact), together[:num_rows])
    for split in ([0, 1, 5], [0, 2, 3, 5], [0, 0, 5]):
        assert np.array_equal(_native.matmul(x, matrix, isa, exact=exact, threads_split=split), together)


def test_every_instruction_set_gives_the_bits_of_the_scalar_one(isa, name):
    cols = cols_of(name)[-1]
    matrix = packed(random_matrix(name, 37, cols))
    for num_rows in ROW_COUNTS:
        x = rows_with_outliers(num_rows, cols)
        for exact in (False, True):
            reference = _native.matmul(x, matrix, "scalar", exact=exact)
            assert np.array_equal(_native.matmul(x, matrix, isa, exact=exact), reference)


def test_outliers_do_not_coarsen_their_neighbours(isa, name):
    cols = cols_of(name)[-1]
    stored = random_matrix(name, 16, cols)
    x = rows_of(9, cols)
    x[:, 5] = 400
    x[4, cols // 2] = -1000
    error = _native.matmul(x, packed(stored), isa) - x.astype(np.float64) @ stored.values.astype(np.float64).T
    # One term alone would keep an outlier's neighbours in steps of 400 / 127 and be off by 5 and more.
    assert np.abs(error).max() < 2


def test_many_columns_are_done_in_groups(isa):
    stored = random_matrix("Q4_K", 16, 256)
    x = rows_with_outliers(900, 256)
    assert_product(_native.matmul(x, packed(stored), isa), quantized_rows(x, "Q4_K"), stored.values)


@pytest.mark.parametrize("code", [0x00, 0x80, 0xFF])
@pytest.mark.parametrize("half", [0.0, -1.0, 6e-8, 65504.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_weights_and_activations_do_not_overflow(isa, code, half, sign):
    for name in HALF_FIELDS:
        cols = 4 * (SCALE_ELEMS[name] or 1)
        stored = uniform_matrix(name, 16, cols, code, half)
        x = np.full((7, cols), sign * 127, dtype=np.float32)
        x[1::2, ::2] *= -1
        # One part in 1e5 of the terms; nothing here cancels beyond that.
        assert_product(_native.matmul(x, packed(stored), isa), quantized_rows(x, name), stored.values)


@pytest.mark.parametrize("code", [0x00, 0x80, 0x77, 0xFF])
@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 230])
def test_extreme_exponents_and_activations(isa, code, exponent):
    blocks = np.full((16 * 4, 17), code, dtype=np.uint8)
    blocks[:, 0] = exponent
    stored = from_bytes("MXFP4", blocks.reshape(-1), 16, 128)
    x = np.full((7, 128), 127, dtype=np.float32)
    x[1::2, ::2] *= -1
    matrix = packed(stored)
    assert np.array_equal(matrix.dequantize(isa), stored.values)
    assert_product(_native.matmul(x, matrix, isa), quantized_rows(x, "MXFP4"), stored.values)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "MXFP4"])
def test_any_bytes_decode_as_the_format_defines_them(isa, name):
    """Random bytes reach every code, every integer scale and every exponent below those that overflow."""
    block = FORMATS[name]
    blocks = np.random.default_rng(5).integers(0, 256, (16 * 32, block.block_bytes), dtype=np.uint8)
    for at in HALF_FIELDS.get(name, ()):
        blocks[:, at + 1] &= 0xBF  # no infinity and no NaN
    blocks[:, 0] = np.minimum(blocks[:, 0], 251) if name == "MXFP4" else blocks[:, 0]
    stored = from_bytes(name, blocks.reshape(-1), 16, 32 * block.block_elems)
    assert np.isfinite(stored.values).all()
    assert np.array_equal(packed(stored).dequantize(isa), stored.values)


def test_packed_matrices_are_nearly_as_small_as_stored_ones(name):
    stored = random_matrix(name, 64, 1024)
    assert packed(stored).nbytes <= 1.05 * len(stored.data)


def test_zero_rows_and_the_smallest_activations_give_zero(isa, name):
    cols = cols_of(name)[-1]
    matrix = packed(random_matrix(name, 16, cols))
    x = np.zeros((3, cols), dtype=np.float32)
    assert not _native.matmul(x, matrix, isa).any()
    x[:] = 1e-38
    assert np.abs(_native.matmul(x, matrix, isa)).max() < 1e-32


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5, 17, 31])
def test_what_is_not_finite_does_not_become_a_number(isa, name, value, place):
    cols = cols_of(name)[-1]
    x = rows_of(9, cols)
    x[4, place] = value
    found = _native.matmul(x, packed(random_matrix(name, 16, cols)), isa)
    assert not np.isfinite(found[4]).any()
    assert np.isfinite(np.delete(found, 4, axis=0)).all()


def test_threads_pack_the_same_bytes(name):
    stored = random_matrix(name, 83, cols_of(name)[-1])
    one, three = packed(stored), packed(stored, threads=3)
    assert (three.rows, three.format, three.nbytes) == (83, name, one.nbytes)
    assert np.array_equal(one.dequantize(), three.dequantize())


def test_strips_pack_the_same_bytes(name):
    stored = random_matrix(name, 83, cols_of(name)[-1])
    rows, cols = stored.values.shape
    row_bytes = len(stored.data) // rows
    strips = _native.PackedMatrix(name, rows, cols)
    for start, stop in ((64, 83), (0, 16), (16, 64)):
        strips.pack(stored.data[start * row_bytes : stop * row_bytes], start, stop - start, threads=2)
    assert np.array_equal(strips.dequantize(), packed(stored).dequantize())


@pytest.mark.parametrize(("first", "count"), [(8, 16), (0, 8), (16, 16), (-16, 16), (0, 48), (2**31 - 16, 16)])
def test_strips_that_are_no_whole_panels(first, count):
    with pytest.raises(ValueError, match=r"expected whole panels of 16 rows inside the matrix"):
        _native.PackedMatrix("F32", 20, 1).pack(np.zeros(4 * count, np.uint8), first, count)


def test_empty_batch(isa):
    assert _native.matmul(rows_of(0, 32), packed(random_matrix("Q8_0", 5, 32)), isa).shape == (0, 5)


def test_unknown_format():
    with pytest.raises(ValueError, match=r"unknown weight format 'Q9_Z': expected one of Q4_0, .*F32"):
        _native.PackedMatrix("Q9_Z", 1, 32)


def test_columns_that_are_no_whole_blocks():
    with pytest.raises(ValueError, match=r"Q4_K matrix of 1 x 128: .* multiples of 256"):
        _native.PackedMatrix("Q4_K", 1, 128)


def test_too_few_bytes():
    with pytest.raises(ValueError, match=r"data: expected 68 elements, got 34"):
        _native.PackedMatrix("Q8_0", 2, 32).pack(np.zeros(34, np.uint8), 0, 2)


def test_wrong_arguments_of_a_product():
    matrix = packed(random_matrix("Q8_0", 20, 64))
    with pytest.raises(ValueError, match=r"x: expected rows of 64 elements, got 32"):
        _native.matmul(rows_of(2, 32), matrix)
    with pytest.raises(ValueError, match=r"threads_split: expected ascending panel boundaries from 0 to 2"):
        _native.matmul(rows_of(2, 64), matrix, threads_split=[0, 1])
    with pytest.raises(ValueError, match=r"row: expected 0 to 19, got 20"):
        matrix.dequantize_row(20)
    with pytest.raises(ValueError, match="abacus"):
        _native.matmul(rows_of(2, 64), matrix, "abacus")
