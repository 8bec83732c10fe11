"""What the products of the kernels must be, from the formats' own definitions, and how far they may be off.

The int8 path multiplies exactly what `quantized_rows` says; only the sums of floats may round. Each result is
compared relative to the sum of the magnitudes of its terms, which is what rounding errors grow with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caudal.quant import FORMATS

# Elements that share one activation scale; None where activations stay float32.
SCALE_ELEMS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), 32),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), 256),
    **dict.fromkeys(("F16", "BF16", "F32"), None),
}
PACKED_FORMATS = tuple(SCALE_ELEMS)
RELATIVE_ERROR = 1e-5
# How many times the root mean square of its row a value is when it is an outlier.
OUTLIER = 4
# Bytes of the float16 fields of a stored block.
HALF_FIELDS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


@dataclass(frozen=True)
class Stored:
    """A matrix as a GGUF file holds it: its bytes, and its values [rows, cols] in float32."""

    name: str
    data: np.ndarray
    values: np.ndarray


def random_matrix(name, rows, cols, seed=0):
    """Quantise normal weights."""
    values = np.random.default_rng(seed).standard_normal((rows, cols), dtype=np.float32)
    return from_bytes(name, FORMATS[name].quantize(values.reshape(-1)), rows, cols)


def uniform_matrix(name, rows, cols, code, half):
    """Fill every byte with `code` and every float16 with `half`, which no quantiser would choose."""
    block_bytes = FORMATS[name].block_bytes
    blocks = np.full((rows * cols // FORMATS[name].block_elems, block_bytes), code, dtype=np.uint8)
    for at in HALF_FIELDS[name]:
        blocks[:, at : at + 2] = np.array([half], dtype="<f2").view(np.uint8)
    return from_bytes(name, blocks.reshape(-1), rows, cols)


def from_bytes(name, data, rows, cols):
    """Decode with the format's oracle."""
    return Stored(name, data, FORMATS[name].dequantize(data).reshape(rows, cols))


def quantized_rows(x, name):
    """Return the values that the int8 path multiplies with, in float64, for float32 rows x [T, K]."""
    elems = SCALE_ELEMS[name]
    if elems is None:
        return x.astype(np.float64)
    # Outliers are exact; the others are rounded to int8 with one scale a block.
    is_outlier = outliers(x)
    blocks = np.where(is_outlier, 0, x).astype(np.float32).reshape(len(x), -1, elems)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 1.5e-36)
    codes = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.float64)
    return np.where(is_outlier, x.astype(np.float64), (codes * (largest / np.float32(127))).reshape(x.shape))


def outliers(x):
    """Return which values of the rows x [T, K] stand out."""
    wide = x.astype(np.float64)
    return np.abs(wide) > OUTLIER * np.sqrt((wide**2).mean(axis=1, keepdims=True))


def assert_product(got, x, weights):
    """Check got [T, rows] against x [T, K] times the transpose of weights [rows, K], given in any precision."""
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    expected = x @ weights.T
    allowed = RELATIVE_ERROR * (np.abs(x) @ np.abs(weights).T) + 1e-30
    worst = np.max(np.abs(got - expected) / allowed)
    assert worst <= 1, f"off by {worst:.2f} of the allowed {RELATIVE_ERROR}"
