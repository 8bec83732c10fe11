"""Rates of the native matrix products, by format, batch and number of threads.

One row of activations is measured on weights that do not fit any cache: its figure to watch is GB/s, against
the F32 line, which does little but read. More rows are measured on a matrix that is small enough to stay near: their
figure is GMAC/s. Packing the activations and copying the results are part of every time. Each line of the output
carries a calibration taken just before it: the rate of a float32 product in cache on one thread, which is bound by
fused multiply-adds and says how fast the machine was just then.

    python bench/kernels.py [--isa avx2] [--formats Q4_K,Q8_0] [--rows 1,8,32,512] [--threads 1,2] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from machine import append_result, facts

from caudal import _native
from caudal.quant import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

NATIVE_FORMATS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("F16", "BF16", "F32"),
)
COLS = 4096
WARM_ROWS = 1024
COLD_BYTES = 320 << 20
REPEATS = 7


def random_matrix(name: str, rows: int, num_threads: int) -> _native.PackedMatrix:
    """Pack random codes of a narrow range, so that scales, be they float16 or exponents of two, are no denormals."""
    block = FORMATS[name]
    size = rows * COLS // block.block_elems * block.block_bytes
    lowest = 108 if name == "MXFP4" else 0
    pattern = np.random.default_rng(0).integers(lowest, lowest + 36, size=1 << 20, dtype=np.uint8)
    matrix = _native.PackedMatrix(name, rows, COLS)
    matrix.pack(np.resize(pattern, size), 0, rows, num_threads)
    return matrix


def calibration_gmac_per_s(isa: str) -> float:
    """Return the best rate of a product of floats that stay in the second-level cache."""
    matrix = _native.PackedMatrix("F32", 256, 768)
    matrix.pack(np.ones(256 * 768, np.float32).view(np.uint8), 0, 256)
    x = np.ones((48, 768), np.float32)
    best = float("inf")
    for _ in range(100):
        start = time.perf_counter()
        _native.matmul(x, matrix, isa)
        best = min(best, time.perf_counter() - start)
    return round(256 * 768 * 48 / best / 1e9, 1)


def rate_of(jobs: list[Callable[[], object]], pool: ThreadPoolExecutor, *, total: float) -> float:
    """Return `total` over the median time of running all jobs at once."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for done in [pool.submit(job) for job in jobs]:
            done.result()
        times.append(time.perf_counter() - start)
    return total / statistics.median(times)


def measure(name: str, isa: str, num_rows: int, num_threads: int) -> dict[str, object]:
    """Return one line of results: every thread multiplies with a matrix of its own."""
    block = FORMATS[name]
    stored_row_bytes = COLS // block.block_elems * block.block_bytes
    rows = WARM_ROWS if num_rows > 1 else COLD_BYTES // num_threads // stored_row_bytes // 16 * 16
    matrices = [random_matrix(name, rows, num_threads) for _ in range(num_threads)]
    x = np.random.default_rng(1).standard_normal((num_rows, COLS), dtype=np.float32)
    macs = float(rows) * COLS * num_rows * num_threads
    calibration = calibration_gmac_per_s(isa)
    repeats = max(1, int(2e9 / macs)) if num_rows > 1 else 1

    def job(matrix: _native.PackedMatrix) -> None:
        for _ in range(repeats):
            _native.matmul(x, matrix, isa)

    with ThreadPoolExecutor(num_threads) as pool:
        rate = rate_of([lambda m=m: job(m) for m in matrices], pool, total=macs * repeats)
    weight_bytes = sum(m.nbytes for m in matrices)
    return {
        "format": name,
        "isa": isa,
        "rows": num_rows,
        "threads": num_threads,
        "gmac_per_s": round(rate / 1e9, 1),
        "gb_per_s": round(rate / macs * weight_bytes / 1e9, 1),
        "calibration_gmac_per_s": calibration,
    }


def main(arguments: list[str]) -> int:
    """Measure every combination, print a line of JSON for each, and keep them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--isa", default=_native.default_isa(), help="default: the best one")
    parser.add_argument("--formats", default=",".join(NATIVE_FORMATS))
    parser.add_argument("--rows", default="1,8,32,512", help="rows of activations")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--out", type=Path, help="append the lines to this file too")
    options = parser.parse_args(arguments)
    for name in options.formats.split(","):
        for num_rows in map(int, options.rows.split(",")):
            for num_threads in map(int, options.threads.split(",")):
                line = measure(name, options.isa, num_rows, num_threads)
                print(json.dumps(line), flush=True)
                if options.out:
                    append_result("kernels", {**facts(), **line}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
