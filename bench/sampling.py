"""Time of choosing one token from a large vocabulary, by sampler setting.

The logits are normal with the standard deviation that those of Gemma 3 have (a model's best tokens stand out more
clearly), and with one that is half of it, as at temperature 2, where tens of thousands of tokens share the mass.
One row is sampled on one thread. Each line of the output has the median of the repeats in milliseconds of the thread's
own time, for the bar of 0.3 ms, and is appended to bench/results/sampling.jsonl.

    python bench/sampling.py [--vocabulary 262144] [--repeats 51] [--spreads 5.8,3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from machine import append_result, facts

from caudal import _native

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "parity"))
from sampling_batches import sampling_batch

BAR_MS = 0.3
SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top_k 40": {"top_k": 40},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "min_p 0.0001": {"min_p": 0.0001},
    "top_k 5000": {"top_k": 5000},
    "top_k 40, top_p 0.95": {"top_k": 40, "top_p": 0.95},
    "typical_p 0.9": {"typical_p": 0.9},
    "penalties": {"repetition_penalty": 1.1, "history": list(range(0, 4000, 3)), "num_prompt": 0},
    "20 log-probabilities": {"num_logprobs": 20},
}


def measure(isa: str, name: str, spread: float, vocabulary: int, repeats: int) -> dict[str, object]:
    """Return one line of results."""
    sampler = _native.Sampler(isa, _native.ThreadPool(1))
    logits = spread * np.random.default_rng(0).standard_normal((1, vocabulary), dtype=np.float32)
    times = []
    for position in range(repeats):
        batch = sampling_batch({**SETTINGS[name], "seeds": 7, "positions": position})
        start = time.thread_time()
        sampler.sample(logits, batch)
        times.append(1e3 * (time.thread_time() - start))
    median = statistics.median(times)
    shape = {"isa": isa, "vocabulary": vocabulary, "spread": spread, "repeats": repeats}
    return {"setting": name} | shape | {"ms": round(median, 4), "longest_ms": round(max(times), 4)}


def main() -> int:
    """Print a line per setting and spread, and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=262144)
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--spreads", default="5.8,3", help="standard deviations of the logits; default: 5.8,3")
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/sampling.jsonl")
    args = parser.parse_args()
    isa = _native.default_isa()
    for spread in map(float, args.spreads.split(",")):
        for name in SETTINGS:
            row = measure(isa, name, spread, args.vocabulary, args.repeats)
            append_result("sampling", row | facts(), args.out)
            verdict = "ok" if row["ms"] < BAR_MS else "OVER"
            print(
                f"{isa}  spread {spread:<4} {name:24} {row['ms']:.3f} ms {verdict}  (longest {row['longest_ms']:.3f})",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
