"""Clients of every kind use a real server for a while, the engine is killed every minute, and nothing may be lost.

    python bench/soak.py [MODEL] --minutes 30

Clients ask over every API that the server has, read answers to their ends or go away, send prompts that no context
holds and bodies that are no requests. At the end every request must have ended exactly once (soak_clients.py); no KV
block may be in use, no answer be open, no descriptor more be open than at the start, and memory must not have grown
over the second half: of the server's process by a straight line through it, of the engine's by one through what each
of its lives had at its end. A line is appended to bench/results/soak.jsonl; the exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from machine import append_result, facts, model_paths, short_name
from servers import Server, caudal_server
from soak_clients import APIS, Client, Tally
from soak_watch import Trend, descriptors, engine_of, memory_mib, metric

KILL_AFTER_S = 62.0
"""Of a life. An engine that lives less than a minute is started again after a longer and longer wait."""
SAMPLE_S = 2.0
SETTLE_S = 30.0
GROWTH = 0.05
GROWTH_MIB = 6.0
"""Memory may have grown by the larger of the two: allocators keep some of what they were given back."""


@dataclass
class Watch:
    """What was seen of the server.

    Attributes:
        kills: moments of the loop's clock when the engine was killed.
        downtimes_s: how long each time nobody answered.
        server_mib: memory of the server's process.
        engine_mib: memory of the engine's process at the end of each life.
    """

    kills: list[float] = field(default_factory=list)
    downtimes_s: list[float] = field(default_factory=list)
    server_mib: Trend = field(default_factory=Trend)
    engine_mib: Trend = field(default_factory=Trend)
    engine_ready_s: float = 0.0

    def engine_may_fail(self, begun_s: float) -> bool:
        """Whether a request that began then can have met a dead engine."""
        return any(begun_s < killed_s + down_s + 5.0 for killed_s, down_s in self._outages())

    def _outages(self) -> list[tuple[float, float]]:
        downtimes = [*self.downtimes_s, *[1e9] * (len(self.kills) - len(self.downtimes_s))]
        return list(zip(self.kills, downtimes, strict=True))[-1:]


async def metrics_page(http: httpx.AsyncClient) -> str:
    """Return what Prometheus would read."""
    return (await http.get("/metrics")).text


async def served_apis(http: httpx.AsyncClient) -> list[str]:
    """Return the names of the APIs that the server has."""
    found = []
    for name, api in APIS.items():
        response = await http.post(api.path, json=api.body("hello", 4, False))  # noqa: FBT003 - see Api
        if response.status_code == 200:
            found.append(name)
        elif response.status_code != 404:
            sys.exit(f"{api.path} answers HTTP {response.status_code}: {response.text[:300]}")
    return found


async def wait_until_healthy(http: httpx.AsyncClient) -> None:
    """Return when the server takes requests."""
    while (await http.get("/health")).status_code != 200:  # noqa: ASYNC110 - another process's event
        await asyncio.sleep(0.05)


async def watch_memory(server: Server, watch: Watch) -> None:
    """Measure until cancelled."""
    clock = asyncio.get_running_loop().time
    while True:
        watch.server_mib.add(clock(), memory_mib(server.process_id))
        await asyncio.sleep(SAMPLE_S)


async def kill_engines(server: Server, watch: Watch, url: str) -> None:
    """Kill the engine whenever it has lived for a minute, until cancelled."""
    clock = asyncio.get_running_loop().time
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        while True:
            await asyncio.sleep(KILL_AFTER_S)
            engine = engine_of(server.process_id)
            if engine is None:
                continue
            watch.engine_mib.add(clock(), memory_mib(engine))
            watch.kills.append(clock())
            os.kill(engine, signal.SIGKILL)
            await asyncio.sleep(0.2)
            await wait_until_healthy(http)
            watch.downtimes_s.append(clock() - watch.kills[-1])


async def run_clients(server: Server, options: argparse.Namespace, tally: Tally, watch: Watch) -> list[str]:
    """Let clients, the killer and the meter work for the time given; return the APIs that were used."""
    url = "http://{}:{}".format(*server.address)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        apis = await served_apis(http)
    beside = [asyncio.create_task(watch_memory(server, watch)), asyncio.create_task(kill_engines(server, watch, url))]
    until_s = asyncio.get_running_loop().time() + options.minutes * 60
    clients = [
        Client(
            url, apis, seed=options.seed + i, tally=tally, engine_may_fail=watch.engine_may_fail,
            max_model_len=options.max_model_len,
        )
        for i in range(options.clients)
    ]  # fmt: skip
    try:
        await asyncio.gather(*(client.run(until_s) for client in clients))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    engine = engine_of(server.process_id)
    if engine is not None:
        watch.engine_mib.add(asyncio.get_running_loop().time(), memory_mib(engine))
    return apis


async def settled(server: Server, start: dict[str, int]) -> dict[str, Any]:
    """Wait until nothing is open any more, or too long; return what then is."""
    url = "http://{}:{}".format(*server.address)
    state: dict[str, Any] = {}
    for _ in range(int(SETTLE_S)):
        async with httpx.AsyncClient(base_url=url, timeout=10, headers={"connection": "close"}) as http:
            await wait_until_healthy(http)
            page = await metrics_page(http)
        await asyncio.sleep(1.0)
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        state = {name.partition(":")[2]: metric(page, name) for name in (*names, "caudal:open_requests")}
        state |= descriptors(server.process_id)
        if not problems_of_state(state, start):
            break
    return state


def problems_of_state(state: dict[str, Any], start: dict[str, int]) -> list[str]:
    """Return what is still open."""
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "open_requests")
    found = [f"{name} is {state[name]}; expected 0" for name in gauges if state[name] != 0]
    return found + [f"{state[n]} {n} are open; at the start {start[n]}" for n in ("files", "sockets") if state[n] > start[n]]  # fmt: skip # noqa: E501


def problems_of_memory(name: str, trend: Trend) -> list[str]:
    """Return whether memory has grown over the second half."""
    half = trend.second_half()
    growth, allowed = half.growth(), max(GROWTH_MIB, GROWTH * half.mean())
    return [f"the {name} grew by {growth:.1f} MiB over the second half; at most {allowed:.1f}"] if growth > allowed else []  # fmt: skip # noqa: E501


async def soak(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; return the row of results."""
    url = "http://{}:{}".format(*server.address)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        await served_apis(http)
    await asyncio.sleep(1.0)
    start = descriptors(server.process_id)
    tally, watch = Tally(), Watch()
    apis = await run_clients(server, options, tally, watch)
    state = await settled(server, start)
    problems = [f"{kind}: not every request ended once" for kind in tally.unbalanced()]
    problems += [*tally.violations, *problems_of_state(state, start)]
    problems += problems_of_memory("server", watch.server_mib) + problems_of_memory("engine", watch.engine_mib)
    half = watch.server_mib.second_half()
    return {
        "minutes": options.minutes, "clients": options.clients, "apis": apis, "begun": tally.begun,
        "ended": tally.ended, "kills": len(watch.kills), "downtimes_s": [round(s, 2) for s in watch.downtimes_s],
        "start": start, "end": state, "server_mib": round(half.mean(), 1),
        "server_growth_mib": round(half.growth(), 2), "engine_mib": [round(v, 1) for v in watch.engine_mib.values],
        "problems": problems[:50],
    }  # fmt: skip


def main() -> int:
    """Return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", default=["SmolLM2-135M"])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="instead of bench/results/soak.jsonl")
    options = parser.parse_args()
    (model,) = model_paths(options.model)
    arguments = ["--served-model-name", "soak", "--max-model-len", str(options.max_model_len), "--max-num-seqs", "4"]
    with caudal_server(model, options.threads, arguments) as server:
        row = asyncio.run(soak(server, options))
    append_result("soak", {"model": short_name(model), **facts(), **row}, options.out)
    print(f"requests: {row['begun']}\nended: {row['ended']}\nkills: {row['kills']}, down for {row['downtimes_s']} s")
    print(f"server: {row['server_mib']} MiB, grew by {row['server_growth_mib']}; engine: {row['engine_mib']} MiB")
    print(*(f"WRONG: {problem}" for problem in row["problems"]), sep="\n")
    return 1 if row["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
