"""Caudal against llama.cpp on the same files: interleaved runs, medians, ratios and a calibration figure.

    python bench/compare.py [MODEL …] --llama-python PYTHON_WITH_XLLAMACPP
    python bench/compare.py [MODEL …] --llama-bench PATH --llama-batched-bench PATH

Each round runs Caudal and llama.cpp once per test, in fresh processes with a warm-up of their own, in alternating
order. llama.cpp gets, for each test, the best of flash attention on/off and GGML_CPU_TILED_MM 0/1. Its figures hold no
sampling, as in llama-bench; Caudal's do. A line per model and test is appended to bench/results/compare.jsonl.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from machine import append_result, calibration_gflops, facts, model_paths, short_name
from rivals import LLAMA_FLAGS, Caudal, Flags, Llama, LlamaBinaries, LlamaPython

TESTS = "pp512,tg64,b8,b32"
# What `caudal bench` measures beside speed: what the machine could do just then, and how much of it the test took.
LIMITS = ("read_limit_gb", "read_fraction", "product_limit_gmac", "product_fraction")


def best_flags(llama: Llama, model: Path, test: str) -> Flags:
    """Try every combination once and return the fastest."""
    rates = {flags: llama.measure(model, test, flags) for flags in LLAMA_FLAGS}
    return max(rates, key=lambda flags: rates[flags])


def compare(model: Path, test: str, caudal: Caudal, llama: Llama, options: argparse.Namespace) -> None:
    """Run the rounds of one test, print its line and append it to the results."""
    flags = options.llama_flags or best_flags(llama, model, test)
    rows: list[dict[str, Any]] = []
    theirs: list[float] = []
    gflops: list[float] = []
    for index in range(options.rounds):
        gflops.append(calibration_gflops())
        for side in (0, 1) if index % 2 == 0 else (1, 0):
            if side == 0:
                rows.append(caudal.measure(model, test))
            else:
                theirs.append(llama.measure(model, test, flags))
    ours = [row["tokens_per_s"] for row in rows]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    row = {
        "model": short_name(model),
        "file": model.name,
        "test": test,
        "caudal": round(statistics.median(ours), 2),
        "llama_cpp": round(statistics.median(theirs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "rounds": options.rounds,
        "threads": options.threads,
        "exact": options.exact,
        "caudal_runs": ours,
        "llama_cpp_runs": theirs,
        "llama_cpp_flags": str(flags),
        "llama_cpp_info": llama.info,
        "caudal_info": caudal.info,
        "calibration_gflops": gflops,
    }
    row |= {name: statistics.median(found[name] for found in rows) for name in LIMITS}
    append_result("compare", row | facts(), options.out)
    spread = f"{min(gflops):.0f}-{max(gflops):.0f}"
    print(
        f"{row['model']:<20}{test:<8}{row['caudal']:>10.1f}{row['llama_cpp']:>11.1f}{row['ratio']:>8.2f}"
        f"   {row['read_fraction']:.0%} of memory, {row['product_fraction']:.0%} of products"
        f"   {flags}   {spread} GFLOP/s",
        flush=True,
    )


def parse_flags(text: str) -> Flags:
    """Read "on,1": flash attention, then GGML_CPU_TILED_MM."""
    flash_attention, _, tiled = text.partition(",")
    return Flags(flash_attention, tiled or "1")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths, or names such as SmolLM2-135M; default: all that are here")
    parser.add_argument("--llama-python", help="a Python with the xllamacpp wheel")
    parser.add_argument("--llama-bench", help="the llama-bench program")
    parser.add_argument("--llama-batched-bench", help="the llama-batched-bench program")
    parser.add_argument("--llama-flags", type=parse_flags, help="FLASH_ATTENTION,TILED such as on,0; default: the best")
    parser.add_argument("--tests", default=TESTS, help=f"default: {TESTS}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--exact", action="store_true", help="measure caudal --exact")
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/compare.jsonl")
    options = parser.parse_args(arguments)
    if not options.llama_python and not (options.llama_bench and options.llama_batched_bench):
        parser.error("give --llama-python, or both --llama-bench and --llama-batched-bench")
    return options


def main() -> None:
    """Compare every model on every test."""
    options = parse(sys.argv[1:])
    caudal = Caudal(options.threads, options.exact)
    llama: Llama
    if options.llama_python:
        llama = LlamaPython(options.llama_python, options.threads)
    else:
        llama = LlamaBinaries(options.llama_bench, options.llama_batched_bench, options.threads)
    print(
        f"{'model':<20}{'test':<8}{'Caudal':>10}{'llama.cpp':>11}{'ratio':>8}   tokens/s, medians of {options.rounds}"
    )
    for model in model_paths(options.models):
        for test in options.tests.split(","):
            compare(model, test, caudal, llama, options)


if __name__ == "__main__":
    main()
