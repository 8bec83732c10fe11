"""Many users chat over HTTP with `caudal serve` and with llama-server: the same chats, in turns, in one run.

    python bench/load.py [MODEL …] --llama-python PYTHON_WITH_XLLAMACPP
    python bench/load.py [MODEL …] --llama-python PYTHON_WITH_XLLAMACPP --long-prompt

Each user sends a chat, reads the streamed answer to its end and sends the next, until the time is up. All chats share
a system prompt of 200 tokens; the user's message has 50 to 1500 tokens, the answer 100 to 300. A server is started
anew for each point and round, with as many slots as there are users, and asked once before the clock starts. What is
not over when the time is up counts for as long as it has taken (quantiles.py), so that no server gains by being slow.

--long-prompt: 16 users stream long answers; then a prompt of 6,000 tokens arrives. The times between tokens until its
first token, beside those without it.

llama-server gets the best of flash attention on/off and GGML_CPU_TILED_MM 0/1, tried with 8 users. A line per model
and point is appended to bench/results/load.jsonl. The client runs on the same cores: its processor time is noted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop
from chats import PROMPT_TOKENS, SYSTEM_TOKENS, ChatMaker
from http_client import StreamTimes, stream_chat
from machine import append_result, facts, model_paths, short_name
from quantiles import Duration, quantile
from rivals import LLAMA_FLAGS, Flags
from servers import Server, caudal_server, llama_server

from caudal.checkpoint import open_checkpoint
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

SIDES = ("caudal", "llama_server")
CTX_PER_USER = 2304  # the longest prompt and answer, the system prompt and the template; llama.cpp wants a round number
PROBE_USERS, PROBE_S = 8, 10
LONG_STREAMS, LONG_PROMPT_TOKENS, LONG_ANSWER_TOKENS = 16, 6000, 3500
LONG_CTX = 7168
LONG_BAR = 3.0
LONG_CAP_S = 300  # for the 16 first tokens, and for that of the long prompt


@dataclass
class Run:
    """What one server did in one round.

    Attributes:
        streams: every request.
        started_s, ended_s: by the clock of `time.perf_counter`.
        client_cpu_s, server_cpu_s, engine_cpu_s: processor time meanwhile; the engine's is that of child processes.
    """

    streams: list[StreamTimes] = field(default_factory=list)
    started_s: float = 0.0
    ended_s: float = 0.0
    client_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    engine_cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it went on."""
        return self.ended_s - self.started_s


def first_token_times(streams: list[StreamTimes], end_s: float) -> list[Duration]:
    """Return how long each request waited for its first token, or has waited."""
    return [
        Duration(s.token_s[0] - s.sent_s) if s.token_s else Duration(end_s - s.sent_s, is_over=False)
        for s in streams
        if not s.failure
    ]


def token_gaps(streams: list[StreamTimes], start_s: float, end_s: float) -> list[Duration]:
    """Return the times between tokens that ended in [start_s, end_s], and those that were not over at end_s."""
    gaps = []
    for stream in streams:
        times = stream.token_s
        gaps += [Duration(b - a) for a, b in pairwise(times) if start_s <= b <= end_s]
        last = max((t for t in times if t <= end_s), default=None)
        if last is not None and not stream.is_complete and not stream.failure:
            gaps.append(Duration(end_s - last, is_over=False))
    return gaps


async def chat_on(server: Server, maker: ChatMaker, num_users: int, seconds: float) -> Run:
    """Let users chat until the time is up."""
    run = Run()

    async def user(number: int) -> None:
        turn = 0
        while time.perf_counter() < run.ended_s:
            chat = maker.chat(number, turn)
            times = StreamTimes(chat.num_prompt_tokens + SYSTEM_TOKENS, 0.0)
            run.streams.append(times)
            await stream_chat(server.address, chat.body, times, run.ended_s)
            turn += 1
            if times.failure:
                await asyncio.sleep(0.5)

    await stream_chat(server.address, maker.chat_of(-1, PROMPT_TOKENS[0], 8).body, StreamTimes(0, 0.0))
    before = time.process_time(), server.cpu_s(), server.child_cpu_s()
    run.started_s = time.perf_counter()
    run.ended_s = run.started_s + seconds
    await asyncio.gather(*(user(number) for number in range(num_users)))
    after = time.process_time(), server.cpu_s(), server.child_cpu_s()
    run.client_cpu_s, run.server_cpu_s, run.engine_cpu_s = (b - a for a, b in zip(before, after, strict=True))
    return run


def summary(runs: list[Run]) -> dict[str, Any]:
    """Return the figures of one server's rounds."""
    streams = [stream for run in runs for stream in run.streams]
    durations = {
        "first_token": [d for run in runs for d in first_token_times(run.streams, run.ended_s)],
        "between_tokens": [d for run in runs for d in token_gaps(run.streams, run.started_s, run.ended_s)],
    }
    rates = [sum(s.num_tokens for s in run.streams) / run.seconds for run in runs]
    prompt_rates = [sum(s.num_prompt_tokens for s in run.streams if s.token_s) / run.seconds for run in runs]
    row: dict[str, Any] = {
        "tokens_per_s": round(statistics.median(rates), 2),
        "prompt_tokens_per_s": round(statistics.median(prompt_rates), 2),
        "answers": sum(s.is_complete for s in streams),
        "begun": sum(bool(s.token_s) for s in streams),
        "asked": len(streams),
        "failures": sum(bool(s.failure) for s in streams),
        "first_failures": [s.failure for s in streams if s.failure][:3],
        "at_least": [],
    }
    for name, values in durations.items():
        for label, q in (("p50", 0.5), ("p99", 0.99)):
            found = quantile(values, q)
            row[f"{name}_{label}_s"] = None if found is None else round(found.seconds, 5)
            row["at_least"] += [f"{name}_{label}_s"] if found is not None and found.at_least else []
    for part in ("client", "server", "engine"):
        row[f"{part}_cores"] = round(sum(getattr(r, f"{part}_cpu_s") for r in runs) / sum(r.seconds for r in runs), 3)
    return row


async def long_prompt_on(server: Server, maker: ChatMaker, seconds: float) -> dict[str, float]:
    """Measure times between tokens without and with a long prompt; `seconds` without, before and after it."""
    streams = [StreamTimes(0, 0.0) for _ in range(LONG_STREAMS)]
    chats = [maker.chat_of(number, PROMPT_TOKENS[0], LONG_ANSWER_TOKENS) for number in range(LONG_STREAMS)]
    tasks = [
        asyncio.create_task(stream_chat(server.address, chat.body, times))
        for chat, times in zip(chats, streams, strict=True)
    ]
    try:
        give_up_s = time.perf_counter() + LONG_CAP_S
        while not all(times.token_s for times in streams):
            check(streams)
            if time.perf_counter() > give_up_s:
                sys.exit(f"load.py: after {LONG_CAP_S} s not all {LONG_STREAMS} streams have begun")
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)  # until the steps hold nothing but decoding
        start_s = time.perf_counter()
        await asyncio.sleep(seconds)
        long = StreamTimes(LONG_PROMPT_TOKENS, 0.0)
        chat = maker.chat_of(-1, LONG_PROMPT_TOKENS, 2)
        await stream_chat(server.address, chat.body, long, time.perf_counter() + LONG_CAP_S)
        check([long])
        begun_s = long.token_s[0] if long.token_s else long.ended_s
        after_s = time.perf_counter()
        await asyncio.sleep(seconds)
        end_s = time.perf_counter()
        check(streams)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    alone = token_gaps(streams, start_s, long.sent_s) + token_gaps(streams, after_s + 0.5, end_s)
    beside = token_gaps(streams, long.sent_s, begun_s)
    row = {"first_token_s": begun_s - long.sent_s, "prompt_was_answered": float(bool(long.token_s))}
    for name, gaps in (("alone", alone), ("beside", beside)):
        for label, q in (("p50", 0.5), ("p99", 0.99)):
            found = quantile(gaps, q)
            assert found is not None, "no times between tokens"
            row[f"{name}_{label}_s"] = found.seconds
    return row | {"ratio_p99": row["beside_p99_s"] / row["alone_p99_s"]}


def check(streams: list[StreamTimes]) -> None:
    """Stop with a message if a request failed or ended: then there is nothing to measure."""
    for times in streams:
        if times.failure or (times.is_complete and times.num_prompt_tokens == 0):
            sys.exit(f"load.py: a stream ended before the measurement did: {times.failure or 'its answer is over'}")


class Point:
    """Starts the servers of one model with one size."""

    def __init__(self, model: Path, options: argparse.Namespace) -> None:
        self.model, self.options = model, options
        with open_checkpoint(str(model)) as checkpoint:
            self.tokenizer = load_gguf_tokenizer(checkpoint.metadata, path=str(model))

    def start(self, side: str, slots: int, ctx: int, flags: Flags) -> Any:
        """Start a server; a context manager."""
        if side == "caudal":
            arguments = ["--max-num-seqs", str(max(slots, 16)), "--max-model-len", str(ctx)]
            arguments += self.options.caudal_flags.split()
            return caudal_server(self.model, self.options.threads, arguments)
        arguments = ["--slots", str(slots), "--ctx-per-slot", str(ctx)]
        return llama_server(self.options.llama_python, self.model, self.options.threads, arguments, flags)

    def chat(self, side: str, users: int, seed: int, seconds: float, flags: Flags) -> Run:
        """Run one round of one side."""
        with self.start(side, users, CTX_PER_USER, flags) as server:
            return uvloop.run(chat_on(server, ChatMaker(self.tokenizer, seed), users, seconds))

    def long_prompt(self, side: str, seed: int, seconds: float, flags: Flags) -> dict[str, float]:
        """Run one round of --long-prompt."""
        with self.start(side, LONG_STREAMS + 1, LONG_CTX, flags) as server:
            return uvloop.run(long_prompt_on(server, ChatMaker(self.tokenizer, seed), seconds))

    def best_flags(self) -> Flags:
        """Try every combination for a moment and return the one with most tokens."""
        if self.options.llama_flags:
            return Flags(*self.options.llama_flags.split(","))
        if "llama_server" not in self.options.sides:
            return Flags()
        probes = {f: self.chat("llama_server", PROBE_USERS, 0, PROBE_S, f) for f in LLAMA_FLAGS}
        return max(probes, key=lambda f: summary([probes[f]])["tokens_per_s"])

    def identity(self, flags: Flags) -> dict[str, Any]:
        """Return what a result says of how it was made."""
        options = self.options
        shared = {"rounds": options.rounds, "threads": options.threads, "seconds": options.seconds}
        names = {"model": short_name(self.model), "file": self.model.name}
        return names | shared | {"caudal_flags": options.caudal_flags, "llama_server_flags": str(flags)} | facts()


def in_turns(point: Point, run_one: Any) -> dict[str, list[Any]]:
    """Run every round of every side, the first one changing."""
    results: dict[str, list[Any]] = {side: [] for side in point.options.sides}
    for index in range(point.options.rounds):
        for side in point.options.sides[:: 1 if index % 2 == 0 else -1]:
            results[side].append(run_one(side, index + 1))
    return results


def measure_chats(point: Point, users: int, flags: Flags) -> None:
    """Measure one number of users, print its lines and append it to the results."""
    seconds = point.options.seconds
    runs = in_turns(point, lambda side, seed: point.chat(side, users, seed, seconds, flags))
    figures = {side: summary(found) for side, found in runs.items()}
    append_result("load", {"test": "chat", "users": users} | point.identity(flags) | figures, point.options.out)
    for side, row in figures.items():
        times = [
            f"{'>' if name in row['at_least'] else ''}{row[name]:.3f}" if row[name] is not None else "none"
            for name in ("first_token_p50_s", "first_token_p99_s", "between_tokens_p50_s", "between_tokens_p99_s")
        ]
        print(
            f"{short_name(point.model):<20}{users:>5} {side:<14}{row['tokens_per_s']:>9.1f}"
            + "".join(f"{text:>11}" for text in times)
            + f"{row['answers']:>6}/{row['asked']:<5}{row['failures']:>3}   client {row['client_cores']:.3f} cores",
            flush=True,
        )


def measure_long_prompt(point: Point, flags: Flags) -> None:
    """Measure --long-prompt, print its lines and append it to the results."""
    seconds = point.options.seconds / 4
    runs = in_turns(point, lambda side, seed: point.long_prompt(side, seed, seconds, flags))
    figures: dict[str, dict[str, float]] = {}
    for side, rows in runs.items():
        figures[side] = {name: round(statistics.median(row[name] for row in rows), 5) for name in rows[0]}
    identity = {"test": "long_prompt", "streams": LONG_STREAMS, "prompt_tokens": LONG_PROMPT_TOKENS}
    append_result("load", identity | point.identity(flags) | figures, point.options.out)
    for side, row in figures.items():
        verdict = "ok" if row["ratio_p99"] <= LONG_BAR else "OVER"
        print(
            f"{short_name(point.model):<20} {side:<14} between tokens, p50/p99: alone {row['alone_p50_s']:.4f}/"
            f"{row['alone_p99_s']:.4f}   beside the prompt {row['beside_p50_s']:.4f}/{row['beside_p99_s']:.4f}   "
            f"p99 ratio {row['ratio_p99']:.2f} {verdict}   the prompt's first token "
            f"{'' if row['prompt_was_answered'] == 1 else 'after more than '}{row['first_token_s']:.1f} s",
            flush=True,
        )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths or short names; default: SmolLM2-135M Qwen2.5-Coder-1.5B")
    parser.add_argument("--llama-python", help="a Python with the xllamacpp wheel; without it Caudal runs alone")
    parser.add_argument("--llama-flags", help="FLASH_ATTENTION,TILED such as on,0; default: the best")
    parser.add_argument("--caudal-flags", default="", help='more for `caudal serve`: "--max-num-batched-tokens 256"')
    parser.add_argument("--users", default="1,8,32,100", help="points; default: 1,8,32,100")
    parser.add_argument("--long-prompt", action="store_true", help="measure a long prompt among streams instead")
    parser.add_argument("--seconds", type=float, default=60, help="of each point, server and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/load.jsonl")
    options = parser.parse_args(arguments)
    options.sides = SIDES if options.llama_python else SIDES[:1]
    options.models = options.models or ["SmolLM2-135M", "Qwen2.5-Coder-1.5B"]
    options.users = [int(text) for text in options.users.split(",")]
    return options


def main() -> None:
    """Measure every model at every point."""
    options = parse(sys.argv[1:])
    points = [Point(model, options) for model in model_paths(options.models)]
    if not options.long_prompt:
        minutes = len(points) * len(options.users) * len(options.sides) * options.rounds * options.seconds / 60
        print(f"at most {minutes:.0f} minutes, and the starts of the servers")
        print(f"{'model':<20}users server  tokens/s, first token p50 and p99, between tokens p50 and p99 (s), answers")
    for point in points:
        flags = point.best_flags()
        if options.long_prompt:
            measure_long_prompt(point, flags)
            continue
        for users in options.users:
            measure_chats(point, users, flags)


if __name__ == "__main__":
    main()
