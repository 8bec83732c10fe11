"""What embeddings and reranking use is their key's: a batch is reserved in one go, and only what was read costs."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from conftest import make_config
from scripted_engine import ScriptedEngine
from test_audit_over_http import records_in
from test_background_accounts import used_in
from test_keys import keyed
from test_openai_routes import until

from caudal.messages import Update


class ReadingEngine(ScriptedEngine):
    """Reads every text at once, but those with `wait`, which it never reads, and `crash`, with which the step fails."""

    def __init__(self, task):
        super().__init__(make_config())
        self._task = task

    def ready_info(self):
        return msgspec.structs.replace(super().ready_info(), task=self._task)

    def step(self):
        self._start()
        if any("crash" in script.text for script in self.running):
            raise ZeroDivisionError
        read = [script for script in self.running if "wait" not in script.text]
        time.sleep(0 if read else 0.01)
        for script in read:
            self.running.remove(script)
        return [Update(request_id=s.request.request_id, finish_reason="stop", embedding=[1.0, 2.0]) for s in read]


def reading(tmp_path, *keys, task="embed", **settings):
    return keyed(tmp_path, *keys, engine=ReadingEngine(task), settings={"audit_log": "full", **settings})


async def embed(http, headers, texts):
    return await http.post("/v1/embeddings", json={"model": "scripted", "input": texts}, headers=headers)


async def used(http, headers):
    return (await http.get("/me/usage", headers=headers)).json()["limits"]["tokens_per_minute"]["used"]


PAIRS = [{"query": "ab", "documents": ["c", "def"]}]
ROUTES = pytest.mark.parametrize(
    ("path", "body", "num_tokens", "texts"),
    [
        ("/v1/embeddings", {"input": ["abc", "de"]}, 7, ["abc", "de"]),
        ("/v1/embeddings", {"input": "abc"}, 4, ["abc"]),
        ("/v1/embeddings", {"input": [[256, 97, 98], [99]]}, 4, ["<|256|>ab", "c"]),
        ("/embedding", {"content": ["abc", "de"]}, 7, ["abc", "de"]),
        ("/api/embed", {"input": ["abc", "de"]}, 7, ["abc", "de"]),
        ("/api/embeddings", {"prompt": "abc"}, 4, ["abc"]),
        ("/v1/rerank", PAIRS[0], None, PAIRS),
        ("/rerank", {"query": "ab", "texts": ["c", "def"]}, None, PAIRS),
    ],
)


@ROUTES
async def test_what_was_read_is_counted_and_on_record(tmp_path, path, body, num_tokens, texts):
    task = "score" if "rerank" in path else "embed"
    async with reading(tmp_path, {"tokens_per_minute": 1000}, task=task) as (http, [mine]):
        response = await http.post(path, json={"model": "scripted", **body}, headers=mine)
        assert response.status_code == 200, response.text
        num_tokens = num_tokens or http.engine.num_prompt
        assert await used(http, mine) == num_tokens
    (record,) = records_in(tmp_path)
    assert (record["prompt_tokens"], record["generated_tokens"]) == (num_tokens, 0)
    assert (record["prompts"], record["answers"]) == (texts, [])
    assert set(record["finish_reasons"]) == {"stop"}
    assert used_in(tmp_path) == [(1, num_tokens, 0, 0)]


@ROUTES
async def test_a_batch_that_never_fits_is_refused_as_such_and_costs_nothing(tmp_path, path, body, num_tokens, texts):
    task = "score" if "rerank" in path else "embed"
    limit = num_tokens - 1 if num_tokens else 7  # each text of a batch alone would fit
    async with reading(tmp_path, {"tokens_per_minute": limit}, task=task) as (http, [mine]):
        for _ in range(3):
            response = await http.post(path, json={"model": "scripted", **body}, headers=mine)
            assert response.status_code == 400, response.text
            assert "never fits" in response.text
            assert "retry-after" not in response.headers
        assert await used(http, mine) == 0
        assert http.engine.num_prompt == 0
    for record in records_in(tmp_path):
        assert (record["prompt_tokens"], record["finish_reasons"], record["prompts"]) == (0, [], texts)


async def test_the_field_that_is_too_large_is_named(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 6}) as (http, [mine]):
        error = (await embed(http, mine, ["abc", "de"])).json()["error"]
        assert (error["code"], error["param"]) == ("request_exceeds_limit", "input")


async def test_a_batch_that_does_not_fit_now_takes_nothing_from_those_that_do(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 10}) as (http, [mine]):
        assert (await embed(http, mine, "abc")).status_code == 200
        refused = await embed(http, mine, ["ab", "cd", "e"])  # 3, 3 and 2: the first two would fit
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert await used(http, mine) == 4
        assert (await embed(http, mine, ["ab", "cd"])).status_code == 200
        assert await used(http, mine) == 10
    assert used_in(tmp_path) == [(3, 10, 0, 0)]


async def test_together_they_do_not_exceed_a_limit(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 20}) as (http, [mine]):
        responses = await asyncio.gather(*(embed(http, mine, ["ab", "cd"]) for _ in range(10)))
        assert sorted(response.status_code for response in responses) == [200] * 3 + [429] * 7
        assert await used(http, mine) == 18


async def test_a_batch_that_fails_costs_nothing(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 1000}) as (http, [mine]):
        assert (await embed(http, mine, ["abc", "crash"])).status_code == 500
        assert await used(http, mine) == 0
    (record,) = records_in(tmp_path)
    assert record["prompt_tokens"] == 0
    assert "error" in record["finish_reasons"]
    assert record["prompts"] == ["abc", "crash"]
    assert used_in(tmp_path) == [(1, 0, 0, 1)]


async def test_a_batch_that_the_server_has_no_room_for_costs_nothing(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 1000}, max_open_requests=4) as (http, [mine]):
        task = asyncio.create_task(embed(http, mine, ["wait", "wait"]))
        await until(lambda: len(http.engine.running) == 2)
        assert (await embed(http, mine, "abc")).status_code == 429
        assert await used(http, mine) == 10
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await used(http, mine) == 0
        await http.engine_client.drain(0)
        assert (await embed(http, mine, "abc")).status_code == 503
        assert await used(http, mine) == 0
    assert {record["status"]: record["prompt_tokens"] for record in records_in(tmp_path)} == {429: 0, 499: 0, 503: 0}


async def test_a_client_that_leaves_pays_for_what_was_read(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 1000}) as (http, [mine]):
        task = asyncio.create_task(embed(http, mine, ["abc", "wait"]))
        await until(lambda: http.engine.running and http.engine_client.num_open == 1)
        assert await used(http, mine) == 4 + 5  # reserved
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await used(http, mine) == 4
    (record,) = records_in(tmp_path)
    assert (record["status"], record["prompt_tokens"], record["finish_reasons"]) == (499, 4, ["stop", "abort"])
    assert used_in(tmp_path) == [(1, 4, 0, 0)]


async def test_what_is_wrong_with_a_text_is_found_before_anything_is_reserved(tmp_path):
    async with reading(tmp_path, {"tokens_per_minute": 1000}) as (http, [mine]):
        for texts in (["abc", "x" * 600], [[97], []]):
            assert (await embed(http, mine, texts)).status_code == 400
        assert await used(http, mine) == 0


async def test_per_key_metrics_name_the_key(tmp_path):
    async with reading(tmp_path, {}, metrics_per_key=True) as (http, [mine]):
        assert (await embed(http, mine, ["abc", "de"])).status_code == 200
        page = http.context.metrics.exposition().decode()
        key_id = http.store.find("key 0").id
        assert f'caudal:key_requests_total{{key="{key_id}",model_name="scripted",reason="stop"}} 2.0' in page
