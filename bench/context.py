"""Speed of decoding behind long contexts, by type of KV cache and number of threads.

    python bench/context.py MODEL [--context 4096] [--streams 8] [--kv f16,int8] [--threads 2]

Every variant fills its own cache with `streams` prompts of `context` random tokens, none shared. Then all variants take
a step in turn, again and again, so that a noisy machine is noisy for all; medians of the steps count, and of the ratios
between a step and that of the first variant just before. A line per variant is appended to bench/results/context.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from machine import append_result, facts, model_paths, short_name

from caudal.backends.registry import make_backend
from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.core.step_plan import PlannedRow, StepPlan
from caudal.engine.runner import Runner
from caudal.engine.step_batch import build_step_batch
from caudal.models.load import load_model

BLOCK_SIZE = 32
CHUNK = 512


@dataclass
class Variant:
    """A loaded model whose streams have read their prompts."""

    kv_dtype: str
    threads: int
    runner: Runner
    prompts: list[list[int]]
    steps_s: list[float] = field(default_factory=list)

    def run(self, rows: list[tuple[int, int, int]]) -> None:
        """Run one step of rows (stream, first token, number of tokens)."""
        num_blocks = -(-len(self.prompts[0]) // BLOCK_SIZE)
        tables = [tuple(range(s * num_blocks, (s + 1) * num_blocks)) for s in range(len(self.prompts))]
        planned = tuple(
            PlannedRow(s, start, count, 1, samples=False, block_tables=(tables[s],) * len(self.runner.groups))
            for s, start, count in rows
        )
        self.runner.forward(build_step_batch(StepPlan(0, BLOCK_SIZE, planned), lambda s: self.prompts[s]))

    def read_prompts(self, context: int) -> None:
        """Fill the cache."""
        for stream, start in itertools.product(range(len(self.prompts)), range(0, context, CHUNK)):
            self.run([(stream, start, min(CHUNK, context - start))])

    def decode(self, position: int) -> None:
        """Take a step with a token of every stream, and its time."""
        start = time.perf_counter()
        self.run([(stream, position, 1) for stream in range(len(self.prompts))])
        self.steps_s.append(time.perf_counter() - start)


def load(model: Path, kv_dtype: str, threads: int, options: argparse.Namespace) -> Variant:
    """Load the model with a cache for the streams, and let it read their prompts."""
    length = options.context + options.steps
    config = EngineConfig(
        model_path=str(model),
        max_model_len=length,
        max_num_seqs=options.streams,
        num_threads=threads,
        kv_cache_dtype=kv_dtype,
    )
    with open_checkpoint(model) as checkpoint:
        backend = make_backend(config)
        decoder = load_model(checkpoint, backend, length)
        runner = Runner(decoder, backend, config, length)
    if any(window is not None for window in decoder.spec.kv_windows):
        sys.exit("context.py: a sliding window forgets what is measured here; choose a model without one")
    ids = np.random.default_rng(0).integers(decoder.spec.vocab_size, size=(options.streams, length)).tolist()
    variant = Variant(kv_dtype, threads, runner, ids)
    variant.read_prompts(options.context)
    return variant


def main() -> None:
    """Measure every variant and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a path, or a name such as SmolLM2-135M")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kv", default="f16,int8")
    parser.add_argument("-t", "--threads", default=str(len(os.sched_getaffinity(0))), help="a list, such as 1,2")
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/context.jsonl")
    options = parser.parse_args()
    (model,) = model_paths([options.model])
    threads = [int(part) for part in options.threads.split(",")]
    variants = [load(model, kv, count, options) for kv in options.kv.split(",") for count in threads]
    for position in range(options.context, options.context + options.steps):
        for variant in variants:
            variant.decode(position)
    print(f"{'model':<20}{'KV':<6}{'threads':>8}{'ms a step':>11}{'tokens/s':>10}{'speed':>8}")
    first = variants[0].steps_s
    for variant in variants:
        step_s = statistics.median(variant.steps_s)
        row = {
            "model": short_name(model),
            "context": options.context,
            "streams": options.streams,
            "kv_dtype": variant.kv_dtype,
            "threads": variant.threads,
            "step_ms": round(step_s * 1e3, 2),
            "tokens_per_s": round(options.streams / step_s, 1),
            "speed_against_first": round(
                statistics.median(a / b for a, b in zip(first, variant.steps_s, strict=True)), 3
            ),
            "steps": options.steps,
        }
        append_result("context", row | facts(), options.out)
        print(
            f"{row['model']:<20}{variant.kv_dtype:<6}{variant.threads:>8}{row['step_ms']:>11}{row['tokens_per_s']:>10}"
            f"{row['speed_against_first']:>8}"
        )


if __name__ == "__main__":
    main()
