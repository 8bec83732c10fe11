"""What Python costs in a step: scheduling, batch building and commit, without the native calls.

    python bench/step_python.py [MODEL]

Processor time of the engine's own thread, with one thread, so that other work on the machine disturbs it little: that
of a step less that of its forward pass and its sampling. The bars: 0.1 ms with one sequence, 0.3 ms with 64. A line per
number of sequences is appended to bench/results/step_python.jsonl.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

from machine import append_result, facts, model_paths, short_name

from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

BARS_MS = {1: 0.1, 64: 0.3}
PROMPT_TOKENS = 64


class Stopwatch:
    """Adds up the processor time of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Any) -> Any:
        """Return the function, timed."""

        def timed(*arguments: Any) -> Any:
            start_s = time.thread_time()
            result = function(*arguments)
            self.seconds += time.thread_time() - start_s
            return result

        return timed


def step_times(model: Path, num_seqs: int, num_steps: int) -> list[float]:
    """Return the seconds of Python in each of `num_steps` steps that only decode."""
    config = EngineConfig(
        model_path=str(model), max_model_len=4096, num_threads=1, kv_cache_bytes=1 << 30, num_speculative_tokens=0
    )
    engine = load_engine(config)
    native = Stopwatch()
    runner: Any = engine._runner  # noqa: SLF001 - nobody else wants to know
    runner.forward, runner.sample = native.around(runner.forward), native.around(runner.sample)
    source = random.Random(1)  # noqa: S311 - any prompts will do
    params = SamplingParams(max_tokens=num_steps + 100, ignore_eos=True)
    for index in range(num_seqs):
        prompt = [source.randrange(1000, 9000) for _ in range(PROMPT_TOKENS)]
        engine.add_request(AddRequest(request_id=f"chatcmpl-{index}", prompt_token_ids=prompt, params=params))
    while sum(len(update.token_ids) for update in engine.step()) < num_seqs:
        pass
    times = []
    for _ in range(num_steps):
        native.seconds = 0.0
        start_s = time.thread_time()
        engine.step()
        times.append(time.thread_time() - start_s - native.seconds)
    return times


def main() -> None:
    """Measure every number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="SmolLM2-135M")
    parser.add_argument("--seqs", default="1,8,64")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/step_python.jsonl")
    options = parser.parse_args()
    model = model_paths([options.model])[0]
    for num_seqs in map(int, options.seqs.split(",")):
        times = step_times(model, num_seqs, options.steps)
        median_ms = statistics.median(times) * 1000
        row = {"model": short_name(model), "seqs": num_seqs, "steps": options.steps, "ms": round(median_ms, 4)}
        append_result("step_python", row | facts(), options.out)
        bar_ms = BARS_MS.get(num_seqs)
        verdict = "" if bar_ms is None else f"   bar {bar_ms} ms {'ok' if median_ms < bar_ms else 'OVER'}"
        print(f"{num_seqs:>4} sequences: {median_ms:.3f} ms of Python a step{verdict}", flush=True)


if __name__ == "__main__":
    main()
