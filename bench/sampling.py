"""Time of choosing one token from a large vocabulary, by sampler setting.

The logits are normal with the standard deviation that those of Gemma 3 have (a model's best tokens stand out more
clearly), and one row is sampled on one thread. Each line of the output has the median of the repeats in milliseconds
of the thread's own time, for the bar of 0.3 ms.

    python bench/sampling.py [--vocabulary 262144] [--repeats 51] [--spread 5.8]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from caudal import _native

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "parity"))
from sampling_batches import sampling_batch

SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top_k 40": {"top_k": 40},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "top_k 40, top_p 0.95": {"top_k": 40, "top_p": 0.95},
    "typical_p 0.9": {"typical_p": 0.9},
    "penalties": {"repetition_penalty": 1.1, "history": list(range(0, 4000, 3)), "num_prompt": 0},
    "20 log-probabilities": {"num_logprobs": 20},
}


def main() -> int:
    """Print a line per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=262144)
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--spread", type=float, default=5.8, help="standard deviation of the logits")
    args = parser.parse_args()
    isa = _native.default_isa()
    sampler = _native.Sampler(isa, _native.ThreadPool(1))
    logits = args.spread * np.random.default_rng(0).standard_normal((1, args.vocabulary), dtype=np.float32)
    for name, setting in SETTINGS.items():
        times = []
        for position in range(args.repeats):
            batch = sampling_batch({**setting, "seeds": 7, "positions": position})
            start = time.thread_time()
            sampler.sample(logits, batch)
            times.append(1e3 * (time.thread_time() - start))
        print(f"{isa}  {name:24} {statistics.median(times):.3f} ms  (longest {max(times):.3f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
