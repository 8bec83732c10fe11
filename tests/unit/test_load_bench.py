"""The ruler of bench/load.py: quantiles of unfinished durations, the streaming client, and what a run is made into."""

import asyncio
import importlib
import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b": ping\n\n",
    b'data: {"choices": [{"delta": {"content": "\\"b"}}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
)


@pytest.fixture
def bench(monkeypatch):
    """Import a module of bench/."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("durations", "q", "expected"),
    [
        ([(s, True) for s in range(1, 101)], 0.5, (50, False)),
        ([(s, True) for s in range(1, 101)], 0.99, (99, False)),
        ([(7, True)], 0.99, (7, False)),
        # Asked a moment before the end: nothing is known of it, so nothing changes.
        ([(0.1, False), *((s, True) for s in range(1, 101))], 0.99, (99, False)),
        # Most have waited as long as there was time.
        ([(1, True), (60, False), (60, False)], 0.5, (60, True)),
        # Two of four are over after 1 and 3, the one between is known to be over 2: 1 - 3/4 * 1/2 = 0.625.
        ([(1, True), (2, False), (3, True), (9, False)], 0.6, (3, False)),
        ([(1, True), (2, False), (3, True), (9, False)], 0.7, (9, True)),
    ],
)
def test_quantile(bench, durations, q, expected):
    module = bench("quantiles")
    assert module.quantile([module.Duration(*d) for d in durations], q) == expected


def test_no_durations_have_no_quantile(bench):
    assert bench("quantiles").quantile([], 0.5) is None


async def ask(bench, portions, status=b"200 OK", deadline_s=float("inf")):
    """The times of one request to a server that answers with these portions of a chunked body, and closes."""
    module = bench("http_client")
    times = module.StreamTimes(5, 0.0)
    is_done = asyncio.Event()

    async def talk(reader, writer):
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 " + status + b"\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
            for portion in portions:
                writer.write(b"%x\r\n%s\r\n" % (len(portion), portion))
                await writer.drain()
                await asyncio.sleep(0.001)
            writer.write(b"0\r\n\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        is_done.set()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        await module.stream_chat(server.sockets[0].getsockname(), {"messages": []}, times, deadline_s)
        await is_done.wait()
    return times


@pytest.mark.parametrize("seed", range(5))
async def test_the_client_counts_events_however_they_are_cut(bench, seed):
    body, rng = b"".join(EVENTS), random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(body)), 12))
    times = await ask(bench, [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)])
    assert (len(times.token_s), times.num_tokens, times.is_complete, times.failure) == (2, 3, True, "")
    assert times.sent_s < times.token_s[0] < times.token_s[1] <= times.ended_s


async def test_what_goes_wrong_is_a_failure(bench):
    assert "HTTP 429" in (await ask(bench, [b'{"error":{}}'], b"429 Too Many Requests")).failure
    assert "ended early" in (await ask(bench, EVENTS[:2])).failure
    assert "error" in (await ask(bench, [*EVENTS[:2], b'event: error\ndata: {"error":{"message":"x"}}\n\n'])).failure
    module = bench("http_client")
    times = module.StreamTimes(1, 0.0)
    await module.stream_chat(("127.0.0.1", 1), {}, times)
    assert "no connection" in times.failure


async def test_leaving_at_the_deadline_is_no_failure(bench):
    times = await ask(bench, [EVENTS[1]] * 5000, deadline_s=bench("time").perf_counter() + 0.2)
    assert not times.failure
    assert not times.is_complete
    assert 0 < times.num_tokens == len(times.token_s) < 5000


def test_a_run_becomes_figures(bench):
    load, client = bench("load"), bench("http_client")
    done = client.StreamTimes(10, 0.0, [1.0, 1.5, 2.5], 3, is_complete=True, ended_s=2.5)
    going_on = client.StreamTimes(10, 1.0, [6.0], 1, ended_s=10.0)
    failed = client.StreamTimes(10, 0.0, failure="HTTP 500: x")
    row = load.summary([load.Run([done, going_on, failed], 0.0, 10.0)])
    assert (row["tokens_per_s"], row["prompt_tokens_per_s"], row["answers"], row["failures"]) == (0.4, 2.0, 1, 1)
    assert (row["first_token_p50_s"], row["first_token_p99_s"]) == (1.0, 5.0)
    # 0.5 and 1.0, and 4 s that were not over.
    assert (row["between_tokens_p50_s"], row["between_tokens_p99_s"]) == (1.0, 4.0)
    assert row["at_least"] == ["between_tokens_p99_s"]


def test_tables_show_what_was_measured(bench, tmp_path, monkeypatch):
    table = bench("load_table")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    assert table.load_table("es") == "Todavía sin medir."
    times = {f"{kind}_{q}_s": 0.5 for kind in ("first_token", "between_tokens") for q in ("p50", "p99")}
    side = times | {"tokens_per_s": 9.0, "answers": 4, "failures": 0, "at_least": ["first_token_p99_s"]}
    shared = {"model": "M", "cpu": "C", "threads": 2, "commit": "c", "rounds": 2, "seconds": 60.0, "caudal_flags": ""}
    chat = shared | {"test": "chat", "users": 8, "llama_server_flags": "F", "caudal": side, "llama_server": side}
    pair = {f"{part}_{q}_s": 0.02 for part in ("alone", "beside") for q in ("p50", "p99")}
    pair |= {"ratio_p99": 1.0, "first_token_s": 3.0, "prompt_was_answered": 1.0}
    long = shared | {"test": "long_prompt", "streams": 16, "prompt_tokens": 6000, "caudal": pair, "llama_server": pair}
    one_sided = {name: value for name, value in chat.items() if name != "llama_server"}
    lines = [bench("json").dumps(row) for row in (chat, chat | {"users": 1}, long, one_sided)]
    (tmp_path / "load.jsonl").write_text("\n".join(lines))
    text = table.load_table("en")
    assert "| M | 8 | Caudal | 9.0 | 0.50 | > 0.50 | 500 | 500 | 4 | 0 |" in text
    assert "| M | llama-server | 20 | 20 | 20 | 20 | 1.00 | 3.0 |" in text
    for block in text.split("\n\n"):
        widths = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1, block


def test_the_engine_of_the_streaming_bench_keeps_its_pace(bench):
    messages, sampling = bench("caudal.messages"), bench("caudal.sampling_params")
    engine = bench("paced_engine").PacedEngine(2000)
    for name in "ab":
        params = sampling.SamplingParams(max_tokens=20)
        engine.add_request(messages.AddRequest(request_id=name, prompt_token_ids=[1], params=params))
    start_s = bench("time").perf_counter()
    steps = []
    while engine.has_work:
        steps.append(engine.step())
    assert bench("time").perf_counter() - start_s >= 19 * 2 / 2000  # the first step does not wait
    assert len(steps) == 20
    assert [update.finish_reason for update in steps[-1]] == ["length", "length"]
    assert all(len(update.token_ids) == 1 for update in steps[3])
