"""What streaming costs the API process: tokens to many clients, from an engine that computes nothing.

    python bench/streaming.py [MODEL]

64 clients read 1,000 tokens a second in all. The bar: less than 25 % of one core in the process that speaks HTTP. The
processor time is that process's own, so that other work on the machine disturbs it little. A line per kind of request
is appended to bench/results/streaming.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from http_client import StreamTimes, stream_chat
from machine import append_result, facts, model_paths
from servers import HERE, python_server

if TYPE_CHECKING:
    from servers import Server

BAR_CORES = 0.25
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop strings": {"stop": ["\n\nUser: ", "<|end of text|>", "Observation: "]},
    "usage": {"stream_options": {"include_usage": True}},
    "logprobs": {"logprobs": True, "top_logprobs": 0},
}


async def stream(server: Server, fields: dict[str, Any], num_clients: int, seconds: float) -> dict[str, float]:
    """Let the clients read, and measure from the moment when all of them do."""
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 8000, "stream": True, **fields}
    streams = [StreamTimes(0, 0.0) for _ in range(num_clients)]
    tasks = [asyncio.create_task(stream_chat(server.address, body, times)) for times in streams]
    while not all(times.token_s for times in streams):
        if any(task.done() for task in tasks):
            failures = [times.failure for times in streams if times.failure]
            sys.exit(f"streaming.py: a stream ended before all had begun: {failures[:1] or 'its answer was over'}")
        await asyncio.sleep(0.05)
    before = time.perf_counter(), server.cpu_s(), time.process_time(), sum(len(s.token_s) for s in streams)
    await asyncio.sleep(seconds)
    after = time.perf_counter(), server.cpu_s(), time.process_time(), sum(len(s.token_s) for s in streams)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    elapsed, server_s, client_s, tokens = (b - a for a, b in zip(before, after, strict=True))
    return {
        "tokens_per_s": tokens / elapsed,
        "server_cores": server_s / elapsed,
        "client_cores": client_s / elapsed,
        "server_us_per_token": server_s / tokens * 1e6,
    }


def main() -> None:
    """Measure every kind of request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="SmolLM2-135M", help="whose tokenizer; default: SmolLM2-135M")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens-per-s", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="plain,stop strings,usage", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/streaming.jsonl")
    options = parser.parse_args()
    model = model_paths([options.model])[0]
    command = [str(HERE / "paced_engine.py"), str(model), str(options.tokens_per_s)]
    search_path = os.pathsep.join(part for part in (str(HERE), os.environ.get("PYTHONPATH")) if part)
    for kind in options.kinds.split(","):
        with python_server(command, {"PYTHONPATH": search_path}) as server:
            rounds = [
                uvloop.run(stream(server, KINDS[kind], options.clients, options.seconds)) for _ in range(options.rounds)
            ]
        row = {name: round(statistics.median(r[name] for r in rounds), 4) for name in rounds[0]}
        identity = {"kind": kind, "clients": options.clients, "rounds": options.rounds, "seconds": options.seconds}
        append_result("streaming", identity | row | facts(), options.out)
        per_1000 = row["server_us_per_token"] / 1000
        print(
            f"{kind:<14}{row['tokens_per_s']:>8.0f} tokens/s   API process {row['server_cores']:.3f} cores, "
            f"{row['server_us_per_token']:.0f} us a token: {per_1000:.3f} cores at 1,000 tokens/s "
            f"{'ok' if per_1000 < BAR_CORES else 'OVER'}   client {row['client_cores']:.3f} cores",
            flush=True,
        )


if __name__ == "__main__":
    main()
