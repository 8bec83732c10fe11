"""What speculation brings where an answer repeats its prompt, and what it costs where it does not.

    python bench/speculation.py [MODEL …]

Each task is answered with speculation off and on, in alternating order and greedily; the answers must be equal. Rates
are tokens per second after the first one, medians over the rounds, and the ratio is the median of the rounds' ratios.
A line per model and task is appended to bench/results/speculation.jsonl. Figures that compare Caudal with other
engines are measured with speculation off (`caudal bench`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import ROOT, append_result, calibration_gflops, facts, model_paths, short_name

from caudal import LLM, SamplingParams
from caudal.config import EngineConfig

CODE = (ROOT / "bench" / "data" / "code.txt").read_text()[:1500]
PROSE = (ROOT / "bench" / "data" / "english.txt").read_text()[:1500]
TASKS = {
    "repeat": f"Repeat the following text word for word:\n\n{PROSE}",
    "edit": f"Add a docstring to each function. Answer with the whole code.\n\n```\n{CODE}\n```",
    "summary": f"Summarise the following text in about 100 words:\n\n{PROSE}",
    "code": "Write a Python class for a binary search tree with insert, delete and in-order iteration.",
    "chat": "Tell me a story about a lighthouse keeper and a whale.",
}
DEFAULT_MODELS = ["SmolLM2-135M", "Qwen2.5-Coder-1.5B"]


def answer(llm: LLM, prompt: list[int], num_tokens: int) -> tuple[list[int], float, int]:
    """Return the answer, tokens per second after its first, and the steps that those took."""
    before = llm.engine.stats().num_steps
    ids: list[int] = []
    first = start = 0.0
    for chunk in llm.stream(prompt, SamplingParams(temperature=0, max_tokens=num_tokens)):
        if not ids:
            first, start = len(chunk.token_ids), time.perf_counter()
            before = llm.engine.stats().num_steps
        ids += chunk.token_ids
    return ids, (len(ids) - first) / (time.perf_counter() - start), llm.engine.stats().num_steps - before


def measure(llms: dict[int, LLM], task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds of one task."""
    rates: dict[int, list[float]] = {most: [] for most in llms}
    answers, steps, gflops = {}, {}, []
    before = llms[options.tokens].engine.stats()
    for index in range(options.rounds):
        gflops.append(calibration_gflops())
        for most in sorted(llms, reverse=index % 2 == 1):
            prompt = llms[most].tokenizer.encode_chat([{"role": "user", "content": TASKS[task]}])
            answers[most], rate, steps[most] = answer(llms[most], prompt, options.length)
            rates[most].append(rate)
    if answers[0] != answers[options.tokens]:
        message = f"{task}: the answer differs with speculation"
        raise AssertionError(message)
    after = llms[options.tokens].engine.stats()
    drafted = after.num_draft_tokens - before.num_draft_tokens
    accepted = after.num_accepted_tokens - before.num_accepted_tokens
    return {
        "task": task,
        "off": round(statistics.median(rates[0]), 2),
        "on": round(statistics.median(rates[options.tokens]), 2),
        "ratio": round(statistics.median([b / a for a, b in zip(*rates.values(), strict=True)]), 3),
        "tokens": len(answers[0]),
        "steps": steps[options.tokens],
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "off_runs": rates[0],
        "on_runs": rates[options.tokens],
        "calibration_gflops": gflops,
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"paths or short names; default: {' '.join(DEFAULT_MODELS)}")
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"default: {','.join(TASKS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--length", type=int, default=200, help="longest answer, in tokens")
    parser.add_argument("--tokens", type=int, default=EngineConfig(model_path="").num_speculative_tokens)
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/speculation.jsonl")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure every model on every task."""
    options = parse(sys.argv[1:])
    print(f"{'model':<20}{'task':<10}{'off':>8}{'on':>8}{'ratio':>8}{'tokens':>8}{'steps':>7}{'accepted':>10}")
    for path in model_paths(options.models or DEFAULT_MODELS):
        settings: dict[str, Any] = {"max_model_len": 2048, "num_threads": options.threads}
        llms = {most: LLM(path, num_speculative_tokens=most, **settings) for most in (0, options.tokens)}
        isa = llms[0].engine.ready_info().isa
        for task in options.tasks.split(","):
            row = measure(llms, task, options)
            shared = {"model": short_name(path), "file": path.name, "isa": isa, "threads": options.threads}
            shared |= {"num_speculative_tokens": options.tokens, "rounds": options.rounds}
            append_result("speculation", shared | row | facts(), options.out)
            print(
                f"{shared['model']:<20}{task:<10}{row['off']:>8.1f}{row['on']:>8.1f}{row['ratio']:>8.2f}"
                f"{row['tokens']:>8}{row['steps']:>7}{row['acceptance'] or 0:>10.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
