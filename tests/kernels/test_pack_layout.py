"""The bytes of packed matrices are on disks (backends/cpu/pack_cache.py): a change needs a new layout version.

When a hash here differs, raise kPackLayoutVersion in native/packed_matrix.h and put the new hashes under the new
number: else a pack cache of yesterday would be read as if it were today's. A new format only adds its hash.
"""

import hashlib

import numpy as np
import pytest

native = pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.backends.cpu.cpu_backend import KERNEL_FORMATS  # noqa: E402
from caudal.quant import FORMATS  # noqa: E402

ROWS, COLUMNS = 21, 512  # two panels, the second one not full
LAYOUTS = {
    1: {
        "BF16": "d7c683e2736e2f14",
        "F16": "d7c683e2736e2f14",
        "F32": "566795eb968356e7",
        "IQ4_NL": "abfaa1212debeeea",
        "IQ4_XS": "110091801f1e3c63",
        "MXFP4": "1d22b9df42154dcc",
        "Q2_K": "c1bfe8b19dcdbb0e",
        "Q3_K": "844168156fef29bf",
        "Q4_0": "abfaa1212debeeea",
        "Q4_1": "33503f7b8d484496",
        "Q4_K": "579310bee362f617",
        "Q5_0": "7aa436ee4b0b8d15",
        "Q5_1": "18b0d1f381948b30",
        "Q5_K": "61d6b270c599a874",
        "Q6_K": "a958303441319d14",
        "Q8_0": "e7d85e9e2084b465",
    },
}  # fmt: skip


def packed_hash(name):
    """The hash of a matrix of all kinds of bytes."""
    block = FORMATS[name]
    num_bytes = ROWS * COLUMNS // block.block_elems * block.block_bytes
    data = np.random.Generator(np.random.PCG64(7)).integers(0, 256, num_bytes, np.uint8)
    matrix = native.PackedMatrix(name, ROWS, COLUMNS)
    matrix.pack(data, 0, ROWS)
    return hashlib.blake2b(matrix.data.tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("name", sorted(KERNEL_FORMATS))
def test_a_layout_changes_with_its_version(name):
    known = LAYOUTS[native.PACK_LAYOUT_VERSION]
    assert name in known, f'a new format: add "{name}": "{packed_hash(name)}"'
    assert packed_hash(name) == known[name], "a packed byte has changed: see above"
