"""The engine in its own process: aborts, deaths and restarts, seen through HTTP and through the client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time

import httpx
import msgspec
import pytest
from conftest import make_config, real_server
from test_openai_routes import until

from caudal.engine.engine_client import EngineClient
from caudal.errors import (
    CaudalError,
    CheckpointError,
    ConfigError,
    EngineDead,
    EngineUnavailable,
    InvalidParameter,
    Overloaded,
)
from caudal.messages import AddRequest, Vocabulary
from caudal.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("tests_importable")


def make_client(**config):
    return EngineClient(make_config(**config), engine_factory="scripted_engine:load", stall_s=0.5)


@pytest.fixture
async def client():
    client = make_client(max_model_len=100_000)
    await client.start()
    yield client
    await client.close()


def ask(text, request_id="r", **params):
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=list(text.encode()),
        params=SamplingParams(**params),
        eos_token_ids=(257,),
    )


async def token_bytes(client, request):
    return bytes([i async for update in client.generate(request) for i in update.token_ids if i < 256])


async def test_many_requests_at_once(client):
    texts = [f"answer {i}" * (i % 7 + 1) for i in range(64)]
    answers = await asyncio.gather(*(token_bytes(client, ask(f"say:{t}", str(i))) for i, t in enumerate(texts)))
    assert [answer.decode() for answer in answers] == texts
    assert client.num_open == 0


async def test_closing_the_stream_aborts_the_request(client):
    updates = client.generate(ask("slow-loop:x"))
    async for _ in updates:
        break
    await updates.aclose()
    assert client.num_open == 0
    await until(lambda: client.stats.num_steps and client.stats.num_running == 0)


async def test_abort_by_id(client):
    asyncio.get_running_loop().call_later(0.1, client.abort, "r")
    reasons = [update.finish_reason async for update in client.generate(ask("slow-loop:x"))]
    assert reasons[-1] == "abort"


async def test_a_refusal_is_raised_as_what_it_was():
    client = make_client(max_num_seqs=1, max_queue_len=1)
    await client.start()
    try:
        running = asyncio.create_task(token_bytes(client, ask("slow-loop:x", "a", max_tokens=20)))
        waiting = asyncio.create_task(token_bytes(client, ask("say:x", "b")))
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="queue is full"):
            await token_bytes(client, ask("say:x", "c"))
        assert await waiting == b"x"
        await running
    finally:
        await client.close()


async def test_health_follows_the_steps(client):
    assert client.healthy
    task = asyncio.create_task(token_bytes(client, ask("hang say:x")))
    await asyncio.sleep(0.2)
    assert client.healthy
    await until(lambda: not client.healthy)
    task.cancel()
    await until(lambda: client.healthy)


async def test_a_failing_step_leaves_the_process_alive(client):
    pid = client.process_id
    (update,) = [update async for update in client.generate(ask("crash"))]
    assert update.finish_reason == "error"
    assert await token_bytes(client, ask("say:x")) == b"x"
    assert client.process_id == pid


async def test_a_request_that_cannot_even_be_taken_ends_alone(client):
    pid = client.process_id
    other = asyncio.create_task(token_bytes(client, ask("slow-say:the other", "other")))
    (update,) = [update async for update in client.generate(ask("explode", "bad"))]
    assert update.finish_reason == "error"
    assert "failed when it took this request (ZeroDivisionError)" in update.error
    assert await other == b"the other"
    assert client.process_id == pid
    assert client.num_open == 0


async def test_death_fails_open_requests_and_the_process_comes_back(client):
    pid = client.process_id
    task = asyncio.create_task(token_bytes(client, ask("slow-loop:x")))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(EngineDead, match="died"):
        await task
    assert time.monotonic() - began < 1
    with pytest.raises(EngineUnavailable) as refused:
        client.generate(ask("say:x"))
    assert refused.value.retry_after_s >= 1
    assert not client.healthy
    await until(lambda: client.healthy)
    assert await token_bytes(client, ask("say:x")) == b"x"
    assert client.process_id != pid


async def test_a_request_that_kills_the_engine_again_and_again(client):
    for _ in range(2):
        await until(lambda: client.healthy)
        with pytest.raises(EngineDead):
            await token_bytes(client, ask("die"))
    await until(lambda: client.healthy)


@pytest.mark.parametrize(
    ("model", "factory", "error", "text"),
    [
        ("broken", "scripted_engine:load", CheckpointError, "broken: magic is b'GGML'; expected b'GGUF'"),
        ("silent", "scripted_engine:load", EngineDead, "exit code 3"),
        ("scripted", "scripted_engine:nothing", ConfigError, "scripted_engine:nothing"),
        ("scripted", "scripted_engine:ORDER", CaudalError, "TypeError"),
    ],
)
async def test_a_failing_start_raises_its_reason(model, factory, error, text, capfd):
    client = EngineClient(make_config(model_path=model), engine_factory=factory)
    try:
        with pytest.raises(error, match=text) as raised:
            await client.start()
        assert type(raised.value) is error
    finally:
        await client.close()
    capfd.readouterr()


async def test_sigint_is_the_servers_and_sigterm_drains(client):
    os.kill(client.process_id, signal.SIGINT)
    task = asyncio.create_task(token_bytes(client, ask("slow-loop:x", "a", max_tokens=20)))
    await asyncio.sleep(0.1)
    os.kill(client.process_id, signal.SIGTERM)
    await asyncio.sleep(0.1)
    with pytest.raises(EngineUnavailable, match="shutting down"):
        await token_bytes(client, ask("say:x", "b"))
    assert await task == b"x" * 20


async def test_drain_and_close():
    client = make_client(max_model_len=100_000)
    await client.start()
    short = asyncio.create_task(token_bytes(client, ask("slow-loop:x", "a", max_tokens=10)))
    await asyncio.sleep(0.05)
    assert await client.drain(5)
    assert await short == b"x" * 10
    with pytest.raises(EngineUnavailable):
        client.generate(ask("say:x"))
    await client.close()
    assert client.process_id is None


async def test_close_ends_open_requests():
    client = make_client(max_model_len=100_000)
    await client.start()
    task = asyncio.create_task(token_bytes(client, ask("slow-loop:x")))
    await asyncio.sleep(0.1)
    assert not await client.drain(0.1)
    await client.close()
    with pytest.raises(EngineUnavailable, match="not complete"):
        await task


def post(url, content, **fields):
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(f"{url}/chat/completions", json=body, timeout=20)


def wait_for(condition, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def test_kill_of_the_engine_seen_by_http_clients():
    with real_server(lambda: make_client(max_model_len=100_000)) as (url, client):
        results = {}

        def whole():
            results["whole"] = post(url, "slow-loop:x")

        def stream():
            body = {"messages": [{"role": "user", "content": "slow-loop:x"}], "stream": True}
            with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=20) as response:
                results["stream"] = [line for line in response.iter_lines() if line]

        threads = [threading.Thread(target=whole), threading.Thread(target=stream)]
        for thread in threads:
            thread.start()
        wait_for(lambda: client.stats.num_running == 2)
        began = time.monotonic()
        os.kill(client.process_id, signal.SIGKILL)
        for thread in threads:
            thread.join(5)
        assert time.monotonic() - began < 1
        assert results["whole"].status_code == 500
        assert results["whole"].json()["error"]["code"] == "engine_dead"
        assert results["stream"][-2] == "event: error"
        assert json.loads(results["stream"][-1].removeprefix("data: "))["error"]["code"] == "engine_dead"

        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200)
        assert post(url, "say:back").json()["choices"][0]["message"]["content"] == "back"


def test_requests_during_the_restart_are_told_when_to_come_back():
    with real_server(make_client) as (url, client):
        pid = client.process_id
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: client.ready is None)
        assert httpx.get(f"{url}/health").status_code == 503
        response = post(url, "say:x")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_unavailable"
        assert int(response.headers["retry-after"]) >= 1
        wait_for(lambda: client.ready is not None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(stream):
    with real_server(lambda: make_client(max_model_len=100_000)) as (url, client):
        body = {"messages": [{"role": "user", "content": "slow-loop:x"}], "stream": stream}
        with httpx.Client() as http:
            if stream:
                with http.stream("POST", f"{url}/chat/completions", json=body) as response:
                    next(response.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    http.post(f"{url}/chat/completions", json=body, timeout=0.3)
        wait_for(lambda: client.num_open == 0, 1)
        wait_for(lambda: client.stats.num_running == 0 and not client.stats.busy, 2)
        metrics = httpx.get(f"{url}/metrics").text
        assert 'vllm:request_success_total{finished_reason="abort",model_name="scripted"} 1.0' in metrics


def test_64_streams_at_once():
    with real_server(lambda: make_client(max_model_len=100_000)) as (url, client):

        async def one(http, i):
            body = {"messages": [{"role": "user", "content": f"say:{i} ñ " * 1}], "stream": True}
            text = ""
            async with http.stream("POST", f"{url}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            return text

        async def everything():
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(limits=limits, timeout=20) as http:
                return await asyncio.gather(*(one(http, i) for i in range(64)))

        assert asyncio.run(everything()) == [f"{i} ñ " for i in range(64)]
        assert client.num_open == 0


async def test_a_new_process_is_told_the_vocabulary_again(client):
    made = []

    def make():
        made.append(1)
        return Vocabulary(tokens=[bytes([i]) for i in range(256)], special_ids=[], eos_token_ids=[257])

    client.know_vocabulary(make)
    constrained = msgspec.structs.replace(ask("say:a"), grammar="{}")
    assert await token_bytes(client, constrained) == b"a"
    with pytest.raises(EngineDead):
        await token_bytes(client, ask("die"))
    await until(lambda: client.ready is not None)
    assert await token_bytes(client, constrained) == b"a"
    assert made == [1]


async def test_a_grammar_without_a_vocabulary_is_refused(client):
    with pytest.raises(InvalidParameter, match="vocabulary is not known"):
        await token_bytes(client, msgspec.structs.replace(ask("say:a"), grammar="{}"))
    assert client.num_open == 0
