"""What a response in the background uses is its key's: limited, counted and written down, once, when it has ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace

import httpx
import pytest
from conftest import make_config, real_server
from scripted_engine import ScriptedEngine
from test_audit_over_http import records_in
from test_keys import ask, bearer, keyed
from test_openai_routes import error_of, until

from caudal.engine.local_client import LocalEngineClient
from caudal.server.keys.key import KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.usage import read_usage
from caudal.server.responses.background import Run, Runs
from caudal.server.settings import ServerSettings

NUM_PROMPT = len("<user>slow-loop:x\n<assistant>") + 1


async def respond(http, headers, text="slow-loop:x", **fields):
    body = {"model": "scripted", "input": text, "background": True, **fields}
    return await http.post("/v1/responses", json=body, headers=headers)


async def limits_of(http, headers):
    limits = (await http.get("/me/usage", headers=headers)).json()["limits"]
    return {name: limit["used"] for name, limit in limits.items()}


async def until_free(http, headers):
    key = http.accounts.find([headers["authorization"].removeprefix("Bearer ")])
    await until(lambda: not http.accounts.limiter.used(key)["max_parallel"])


def records_of_responses(tmp_path):
    return [record for record in records_in(tmp_path) if record["route"] == "/v1/responses"]


def used_in(tmp_path):
    with KeyStore(tmp_path).transaction() as db:
        return [(row.requests, row.prompt_tokens, row.generated_tokens, row.errors) for row in read_usage(db)]


async def begin(http, headers, *, leaves, **fields):
    """Begin a response in the background; a client that leaves reads a stream of it, and goes in its middle."""
    if not leaves:
        assert (await respond(http, headers, **fields)).status_code == 200
        return
    task = asyncio.create_task(respond(http, headers, stream=True, **fields))
    await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


LEAVES = pytest.mark.parametrize("leaves", [False, True])


@LEAVES
async def test_it_holds_its_places_until_it_has_ended_and_is_counted_once(tmp_path, leaves):
    fields = {"max_parallel": 1, "tokens_per_minute": 1000}
    async with keyed(tmp_path, fields, settings={"audit_log": "full"}) as (http, [mine]):
        await begin(http, mine, leaves=leaves, max_output_tokens=30)
        assert "max parallel" in error_of(await ask(http, mine), 429)["message"]
        assert await limits_of(http, mine) == {"max_parallel": 1, "tokens_per_minute": NUM_PROMPT + 30}
        await until(lambda: records_in(tmp_path))  # the refusal; the response has not ended
        assert records_of_responses(tmp_path) == []
        await until_free(http, mine)
        assert await limits_of(http, mine) == {"max_parallel": 0, "tokens_per_minute": NUM_PROMPT + 30}
        assert not http.engine.has_work
        assert (await ask(http, mine, max_tokens=5)).status_code == 200
    (record,) = records_of_responses(tmp_path)
    assert (record["status"], record["finish_reasons"], record["model"]) == (200, ["length"], "scripted")
    assert (record["prompt_tokens"], record["generated_tokens"]) == (NUM_PROMPT, 30)
    assert (record["prompts"], record["answers"]) == ([[{"role": "user", "content": "slow-loop:x"}]], ["x" * 30])
    assert record["duration_s"] > 0.3  # that of the work, not of its being taken
    others = [entry for entry in records_in(tmp_path) if entry is not record]
    assert sum(row[2] for row in used_in(tmp_path)) == sum(entry["generated_tokens"] for entry in others)
    assert sum(row[0] for row in used_in(tmp_path)) == 3


async def test_a_stream_that_is_read_to_its_end_is_counted_once(tmp_path):
    async with keyed(tmp_path, {"max_parallel": 1, "tokens_per_minute": 1000}) as (http, [mine]):
        assert (await respond(http, mine, "say:abc", stream=True)).status_code == 200
        assert (await limits_of(http, mine))["max_parallel"] == 0
    (record,) = records_of_responses(tmp_path)
    assert (record["status"], record["generated_tokens"]) == (200, len("abc") + 1)
    assert used_in(tmp_path) == [(1, NUM_PROMPT - len("slow-loop:x") + len("say:abc"), len("abc") + 1, 0)]


async def test_the_limit_of_tokens_is_one_for_both_ways_to_ask(tmp_path):
    async with keyed(tmp_path, {"tokens_per_minute": 100, "max_parallel": 9}) as (http, [mine]):
        for _ in range(3):  # 25 of the prompt and 3 of the answer each
            assert (await respond(http, mine, "say:hi", max_output_tokens=15)).status_code == 200
            await until_free(http, mine)
        assert (await limits_of(http, mine))["tokens_per_minute"] == 3 * 28
        assert error_of(await respond(http, mine, "say:hi", max_output_tokens=15), 429)["code"] == "rate_limit_exceeded"
        assert (await ask(http, mine, max_tokens=15)).status_code == 429


async def test_one_that_is_cancelled_costs_what_it_has_written(tmp_path):
    async with keyed(tmp_path, {"max_parallel": 1, "tokens_per_minute": 1000}) as (http, [mine]):
        made = (await respond(http, mine, max_output_tokens=400)).json()
        await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 2)
        assert (await http.post(f"/v1/responses/{made['id']}/cancel", headers=mine)).status_code in (200, 429)
        await http.delete(f"/v1/responses/{made['id']}", headers=mine)
        await until_free(http, mine)
        used = (await limits_of(http, mine))["tokens_per_minute"]
        assert NUM_PROMPT < used < NUM_PROMPT + 400
    (record,) = records_of_responses(tmp_path)
    assert (record["status"], record["finish_reasons"]) == (200, ["abort"])
    assert record["prompt_tokens"] + record["generated_tokens"] == used


async def test_a_client_that_leaves_before_it_is_answered_has_asked_all_the_same(tmp_path, monkeypatch):
    async with keyed(tmp_path, {"max_parallel": 1}) as (http, [mine]):
        runs = http.context.responses.runs
        start = runs.start

        async def start_and_never_answer(tenant, run):
            await start(tenant, run)
            await asyncio.Event().wait()

        monkeypatch.setattr(runs, "start", start_and_never_answer)
        task = asyncio.create_task(respond(http, mine, "slow-say:hi"))
        await until(lambda: http.engine.running)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_free(http, mine)
    (record,) = records_of_responses(tmp_path)
    assert (record["status"], record["finish_reasons"], record["generated_tokens"]) == (200, ["stop"], 3)


async def test_one_that_fails_is_an_error_of_its_key(tmp_path):
    async with keyed(tmp_path, {"max_parallel": 1, "tokens_per_minute": 1000}) as (http, [mine]):
        assert (await respond(http, mine, "crash")).status_code == 200
        await until_free(http, mine)
        assert (await limits_of(http, mine))["tokens_per_minute"] == 0
    (record,) = records_of_responses(tmp_path)
    assert (record["status"], record["finish_reasons"]) == (200, ["error"])
    assert used_in(tmp_path) == [(1, 0, 0, 1)]


async def test_one_that_is_refused_leaves_nothing_held(tmp_path):
    settings = {"max_open_requests": 1}
    async with keyed(tmp_path, {"max_parallel": 5, "tokens_per_minute": 1000}, settings=settings) as (http, [mine]):
        await begin(http, mine, leaves=False, max_output_tokens=30)
        assert error_of(await respond(http, mine), 429)["code"] != "rate_limit_exceeded"
        assert await limits_of(http, mine) == {"max_parallel": 1, "tokens_per_minute": NUM_PROMPT + 30}
        await until_free(http, mine)
        assert (await respond(http, mine, max_output_tokens=2)).status_code == 200
        await until_free(http, mine)
    assert sorted(record["status"] for record in records_of_responses(tmp_path)) == [200, 200, 429]


async def test_those_that_a_leaving_server_ends_are_counted(tmp_path):
    async with keyed(tmp_path, {"max_parallel": 2}) as (http, [mine]):
        await begin(http, mine, leaves=False)
        await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 2)
        await begin(http, mine, leaves=False)
        await http.context.responses.close()
        assert (await limits_of(http, mine))["max_parallel"] == 0
    first, second = records_of_responses(tmp_path)
    assert (first["finish_reasons"], second["finish_reasons"]) == (["abort"], ["abort"])
    assert first["generated_tokens"] > 0
    assert used_in(tmp_path)[0][0] == 2


def test_a_connection_that_is_closed_in_the_middle_of_its_stream_ends_nothing(tmp_path):
    secret = KeyStore(tmp_path).create(KeyFields(name="k", max_parallel=1)).secret
    settings = ServerSettings(state_dir=tmp_path)
    body = {"model": "scripted", "input": "slow-loop:x", "background": True, "stream": True, "max_output_tokens": 40}
    with real_server(lambda: LocalEngineClient(ScriptedEngine(make_config())), settings) as (url, client):
        with httpx.stream("POST", f"{url}/v1/responses", json=body, headers=bearer(secret)) as response:
            assert response.status_code == 200
            next(response.iter_bytes())
        assert httpx.post(f"{url}/v1/responses", json=body, headers=bearer(secret)).status_code == 429
        due = time.monotonic() + 10
        while client.num_open:
            assert time.monotonic() < due
            time.sleep(0.01)
    by_status = {record["status"]: record for record in records_of_responses(tmp_path)}
    assert sorted(by_status) == [200, 429]
    assert (by_status[200]["finish_reasons"], by_status[200]["generated_tokens"]) == (["length"], 40)


class Writer:
    """As much of a ResponseWriter as a run that is ended at once needs."""

    response = SimpleNamespace(id="resp_1")

    def begin(self):
        return b"begun"

    def failure(self, _problem):
        return b"failed"

    def cancel(self):
        pass


async def test_a_run_that_is_ended_in_the_moment_of_its_beginning_lets_go():
    let_go = []
    held = AsyncExitStack()
    held.callback(let_go.append, "held")
    run, runs = Run(None, None, Writer(), held), Runs()
    starting = asyncio.create_task(runs.start("", run))
    await asyncio.sleep(0)  # the task is made, and has not run
    starting.cancel()
    await runs.close()
    assert let_go == ["held"]
    await asyncio.gather(starting, return_exceptions=True)
    await asyncio.sleep(0)
    assert runs.get("", "resp_1") is None
