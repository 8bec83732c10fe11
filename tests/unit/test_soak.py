"""The soak's own judgement: it must see what it is there to see."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from soak import problems_of_memory, problems_of_state
from soak_clients import APIS, Client, Tally, Violation
from soak_watch import Trend, metric

sys.path.pop()

END = b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ERROR = b'data: {"error":{"message":"the engine process died"}}\n\n'


def client(*, engine_may_fail=False):
    return Client(
        "http://test", ["chat"], seed=1, tally=Tally(), engine_may_fail=lambda _: engine_may_fail, max_model_len=64
    )


def ask(kind, reply, *, engine_may_fail=False):
    """Let a client of one kind meet a server that always replies the same; return how the request ended."""

    async def go():
        transport = httpx.MockTransport(lambda request: reply(request) if callable(reply) else reply)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await getattr(client(engine_may_fail=engine_may_fail), kind)(http, APIS["chat"])

    return asyncio.run(go())


def answer(stream):
    """Return what makes an answer: a stream, or else a whole body."""

    def reply(request):
        if json.loads(request.content)["stream"]:
            return httpx.Response(200, content=stream)
        return httpx.Response(200, json={"choices": [{"finish_reason": "stop"}]})

    return reply


def test_a_stream_with_one_last_word_is_finished():
    assert ask("_answer", answer(END)) == "finished"


@pytest.mark.parametrize("stream", [b"", b'data: {"choices":[]}\n\n', END + END, END + ERROR, ERROR + ERROR, ERROR])
def test_a_stream_without_its_one_last_word_is_a_violation(stream):
    with pytest.raises(Violation):
        ask("_answer", answer(stream))


def test_an_error_is_no_violation_after_a_kill():
    assert ask("_answer", answer(ERROR), engine_may_fail=True) == "failed"
    with pytest.raises(Violation):
        ask("_answer", answer(END + ERROR), engine_may_fail=True)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 404, 200])
def test_only_a_refusal_answers_bad_input(status):
    for kind in ("_overflow", "_malformed"):
        if (kind, status) == ("_malformed", 404):
            continue
        with pytest.raises(Violation):
            ask(kind, httpx.Response(status, json={}))
    assert ask("_overflow", httpx.Response(400)) == ask("_malformed", httpx.Response(422)) == "refused"


def test_an_unexpected_500_is_a_violation_even_after_a_kill():
    with pytest.raises(Violation):
        ask("_answer", httpx.Response(500, json={"error": "the server failed"}), engine_may_fail=True)


def test_requests_that_did_not_end_once_are_seen():
    tally = Tally()
    tally.begin("answer")
    assert tally.unbalanced() == ["answer"]
    tally.end("answer", "finished")
    assert tally.unbalanced() == []
    tally.end("answer", "failed")
    assert tally.unbalanced() == ["answer"]


def test_growth_is_that_of_the_second_half():
    flat_after_warm_up = Trend(list(range(100)), [min(t, 50) for t in range(100)])
    growing = Trend(list(range(100)), [100 + t for t in range(100)])
    assert problems_of_memory("server", flat_after_warm_up) == []
    assert "grew by 49.0 MiB" in problems_of_memory("server", growing)[0]
    assert problems_of_memory("server", Trend([1.0], [5.0])) == []


def test_what_is_still_open_is_seen():
    good = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
    good |= {"open_requests": 0.0, "files": 9, "sockets": 3}
    start = {"files": 10, "sockets": 3}
    assert problems_of_state(good, start) == []
    for name, value in (("kv_cache_usage_perc", 0.01), ("open_requests", 1.0), ("open_requests", None), ("sockets", 4)):
        assert len(problems_of_state({**good, name: value}, start)) == 1


def test_samples_of_a_metric_are_added():
    page = '# TYPE x gauge\nx{model="a"} 1.0\nx{model="b"} 2.5\nx_total 9\ny 4\n'
    assert (metric(page, "x"), metric(page, "y"), metric(page, "z")) == (3.5, 4.0, None)
