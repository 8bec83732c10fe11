"""What the audit log of a running app says, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from conftest import in_process, make_config, real_server
from scripted_engine import ScriptedEngine
from test_keys import ask, keyed
from test_openai_routes import chat, complete, error_of, until

from caudal.engine.local_client import LocalEngineClient
from caudal.server.audit.audit_files import files_of, lines_of, verify_log
from caudal.server.keys.accounts import STRANGERS_PER_MINUTE
from caudal.server.keys.key import KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.usage import read_usage
from caudal.server.settings import ServerSettings


def records_in(tmp_path):
    return [json.loads(line) for _, _, line in lines_of(files_of(tmp_path))]


async def test_metadata_is_written_when_there_are_keys(tmp_path):
    async with keyed(tmp_path, {"name": "Añña"}) as (http, [mine]):
        body = (await ask(http, mine, "say:a secret word", n=2, max_tokens=4)).json()
        key = http.store.find("Añña")
        await ask(http, mine, temperature=-1)
        await http.get("/v1/models", headers=mine)
        await http.get("/health")
    first, second = records_in(tmp_path)
    assert first["request_id"].startswith("req_")
    assert (first["key_id"], first["key_name"], first["model"]) == (key.id, "Añña", "scripted")
    assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/chat/completions", 200)
    assert first["prompt_tokens"] == body["usage"]["prompt_tokens"]
    assert first["generated_tokens"] == body["usage"]["completion_tokens"]
    assert first["finish_reasons"] == ["length", "length"]
    assert first["client"] == "127.0.0.1"
    assert first["duration_s"] > 0
    assert second["status"] == 400
    assert "secret word" not in json.dumps([first, second])
    assert verify_log(tmp_path).broken is None


@pytest.mark.parametrize("stream", [False, True])
async def test_full_adds_prompts_and_answers(tmp_path, stream):
    async with keyed(tmp_path, {}, settings={"audit_log": "full"}) as (http, [mine]):
        await ask(http, mine, "say:grün 🎉", stream=stream)
        body = {"model": "scripted", "prompt": "say:x", "stream": stream}
        await http.post("/v1/completions", json=body, headers=mine)
    chatted, completed = records_in(tmp_path)
    assert chatted["prompts"] == [[{"role": "user", "content": "say:grün 🎉"}]]
    assert chatted["answers"] == ["grün 🎉"]
    assert completed["prompts"] == ["<|256|>say:x"]
    assert completed["answers"] == ["x"]


async def test_off_is_off_and_asked_for_is_on(tmp_path):
    async with keyed(tmp_path, {}, settings={"audit_log": "off"}) as (http, [mine]):
        await ask(http, mine)
    assert records_in(tmp_path) == []
    async with in_process(ServerSettings(state_dir=tmp_path / "open", audit_log="metadata")) as http:
        await chat(http, "say:hi")
    assert [(r["key_id"], r["status"]) for r in records_in(tmp_path / "open")] == [("", 200)]


async def test_refusals_are_written_but_strangers_cannot_fill_the_disk(tmp_path):
    async with keyed(tmp_path, {}, {"scopes": ("admin",)}) as (http, [mine, admin]):
        assert (await http.get("/admin/keys", headers=mine)).status_code == 403
        assert (await http.post("/admin/keys", json={"name": "new"}, headers=admin)).status_code == 201
        for _ in range(STRANGERS_PER_MINUTE + 20):
            assert (await complete(http, "x")).status_code == 401
    forbidden, created, *strangers = records_in(tmp_path)
    assert (forbidden["status"], forbidden["route"]) == (403, "/admin/keys")
    assert (created["status"], created["method"]) == (201, "POST")
    assert len(strangers) == STRANGERS_PER_MINUTE
    assert {record["status"] for record in strangers} == {401}


def test_a_server_that_ends_writes_what_it_knows(tmp_path):
    secret = KeyStore(tmp_path).create(KeyFields(name="Anna")).secret
    settings = ServerSettings(state_dir=tmp_path, audit_log="full")
    with real_server(lambda: LocalEngineClient(ScriptedEngine(make_config())), settings) as (url, _):
        body = {"prompt": "say:hi", "model": "scripted"}
        response = httpx.post(f"{url}/v1/completions", json=body, headers={"x-api-key": secret})
        assert response.status_code == 200
        response = httpx.post(f"{url}/v1/completions", json=body, headers={"x-api-key": secret + " x"})
        assert response.status_code == 401
    answered, refused = records_in(tmp_path)
    assert (answered["key_name"], answered["answers"], refused["status"]) == ("Anna", ["hi"], 401)
    assert answered["client"] == "127.0.0.1"
    with KeyStore(tmp_path).transaction() as db:
        assert [(row.key_name, row.requests) for row in read_usage(db)] == [("Anna", 1)]


async def test_a_client_that_leaves_is_on_record(tmp_path):
    async with keyed(tmp_path, {}) as (http, [mine]):
        task = asyncio.create_task(ask(http, mine, "slow-loop:x", stream=True))
        await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not http.engine.has_work)
    (record,) = records_in(tmp_path)
    assert record["finish_reasons"] == ["abort"]
    assert record["generated_tokens"] > 0


@pytest.mark.parametrize("strict", [False, True])
async def test_a_full_disk_stops_serving_only_if_that_was_asked_for(tmp_path, monkeypatch, strict, capfd):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    async with keyed(tmp_path, {}, settings={"audit_strict": strict}) as (http, [mine]):
        monkeypatch.setattr("caudal.server.audit.audit_log.append", full)
        monkeypatch.setattr("caudal.server.audit.audit_log.RETRY_S", 0.05)
        assert (await ask(http, mine)).status_code == 200
        await until(lambda: http.accounts._audit._failing)
        response = await ask(http, mine)
        assert response.status_code == (503 if strict else 200)
        if strict:
            assert error_of(response, 503)["code"] == "audit_unavailable"
            assert response.headers["retry-after"] == "5"
        assert (await http.get("/health")).status_code == 200
        monkeypatch.undo()
        await until(lambda: not http.accounts._audit._failing)
        assert (await ask(http, mine)).status_code == 200
    assert [record["status"] for record in records_in(tmp_path)] == [200, 503 if strict else 200, 200]
    capfd.readouterr()
