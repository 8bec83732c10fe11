"""From nothing to the first token, and what it takes in memory.

    python bench/startup.py [MODEL …]

For each model, in fresh processes: seconds from the start of the process (and from the moment that the model file is
opened) to the first token of a short prompt; peak resident memory after 64 tokens, beside its bar of
1.15 x (weights + KV in use) + 150 MB; and the time of `caudal --help`. Medians of several runs. A line per model is
appended to bench/results/startup.jsonl. The file is in the page cache: the first run, which puts it there, is left out.
With --pack-cache that run also writes the packed weights, and the others map them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import append_result, facts, model_paths, short_name

PROMPT = "Name three rivers of Europe."
NUM_TOKENS = 64
RSS_FACTOR, RSS_ALLOWANCE_BYTES = 1.15, 150_000_000


def child(model: str, threads: int, pack_cache: str | None) -> None:
    """Load, answer, and print what it took. Runs in a process of its own."""
    started = time.perf_counter()
    from caudal import LLM, SamplingParams  # noqa: PLC0415 - importing is part of what is measured

    with LLM(Path(model), num_threads=threads, max_model_len=1024, pack_cache=pack_cache) as llm:
        stream = llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
        next(stream)
        first_token_s = time.perf_counter() - started
        num_tokens = len(llm.tokenizer.encode(PROMPT)) + 1 + sum(len(chunk.token_ids) for chunk in stream)
        ready = llm.engine.ready_info()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "first_token_s": first_token_s,
        "load_s": ready.load_s,
        "peak_rss_bytes": peak,
        "weights_bytes": ready.weights_bytes,
        "kv_bytes": num_tokens * ready.kv_bytes_per_token,
    }
    print(json.dumps(result))


def run_child(model: Path, options: argparse.Namespace) -> dict[str, float]:
    """Run `child` in a fresh process and add that process's own wall time."""
    command = [sys.executable, __file__, "--child", str(model), "-t", str(options.threads)]
    command += ["--pack-cache", options.pack_cache] if options.pack_cache else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    row: dict[str, float] = json.loads(done.stdout)
    return row


def help_s(runs: int) -> float:
    """Return the best time of `caudal --help`."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "caudal.cli.main", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def measure(model: Path, options: argparse.Namespace) -> None:
    """Measure one model, print its line and append it to the results."""
    runs = [run_child(model, options) for _ in range(options.runs + 1)][1:]
    row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    bar = RSS_FACTOR * (row["weights_bytes"] + row["kv_bytes"]) + RSS_ALLOWANCE_BYTES
    identity = {"model": short_name(model), "threads": options.threads, "runs": options.runs}
    identity |= {"pack_cache": bool(options.pack_cache)}
    append_result("startup", identity | row | {"peak_rss_bar_bytes": bar} | facts(), options.out)
    verdict = "ok" if row["peak_rss_bytes"] <= bar else "OVER"
    print(
        f"{short_name(model):<20}first token {row['first_token_s']:.2f} s   "
        f"peak RSS {row['peak_rss_bytes'] / 1e6:.0f} MB"
        f"   bar {bar / 1e6:.0f} MB {verdict}",
        flush=True,
    )


def main() -> None:
    """Measure every model, or be the child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths, or names such as SmolLM2-135M; default: all that are here")
    parser.add_argument("--child", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pack-cache", metavar="DIR", help="keep packed weights there; the first run writes them")
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/startup.jsonl")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.threads, options.pack_cache)
        return
    seconds = help_s(10)
    append_result("startup", {"test": "caudal --help", "seconds": seconds} | facts(), options.out)
    print(f"caudal --help       {seconds:.3f} s")
    for model in model_paths(options.models):
        measure(model, options)


if __name__ == "__main__":
    main()
