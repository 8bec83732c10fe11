"""The admin API and what a key is told of itself; usage is counted, written in time, and exported."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sqlite3

import pytest
from test_keys import ask, bearer, keyed
from test_openai_routes import error_of, until

from caudal.server.keys.accounts import Accounts
from caudal.server.keys.key import KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.usage import Usage, UsageLedger, read_usage, used_today
from caudal.server.keys.usage_export import usage_csv
from caudal.server.settings import ServerSettings

ADMIN = {"scopes": ("admin",), "name": "admin"}


async def test_a_keys_life_over_http(tmp_path):
    async with keyed(tmp_path, ADMIN) as (http, [admin]):
        fields = {"name": "Anna", "department": "sales", "requests_per_minute": 5, "models": ["scr*"]}
        response = await http.post("/admin/keys", json=fields, headers=admin)
        assert response.status_code == 201
        assert response.headers["cache-control"] == "no-store"
        created = response.json()
        key, mine = created["key"], bearer(created["secret"])
        assert key.items() >= fields.items()
        assert (await ask(http, mine)).status_code == 200
        url = f"/admin/keys/{key['id']}"
        assert (await http.get(url, headers=admin)).json() == key | {"last_used_at": None}
        changed = await http.patch(url, json={"requests_per_minute": None, "priority": 2}, headers=admin)
        assert changed.json() == key | {"requests_per_minute": None, "priority": 2}
        rotated = (await http.post(f"{url}/rotate", headers=admin)).json()
        assert (await ask(http, mine)).status_code == 401
        mine = bearer(rotated["secret"])
        assert (await ask(http, mine)).status_code == 200
        assert (await http.delete(url, headers=admin)).json()["revoked_at"] > 0
        assert (await ask(http, mine)).status_code == 401
        listed = (await http.get("/admin/keys", headers=admin)).json()
        assert [row["name"] for row in listed["data"]] == ["admin", "Anna"]
        assert "secret" not in json.dumps(listed)
        assert "digest" not in json.dumps(listed)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (b"{}", "name"),
        (b'{"name": "a\\r\\nb"}', "name"),
        (b'{"name": 3}', "name"),
        (b'{"name": "a", "scopes": ["root"]}', "scopes"),
        (b'{"name": "a", "requests_per_minutes": 5}', None),
        (b'{"name": "a", "requests_per_minute": 1e99}', "requests_per_minute"),
        (b'{"name": "a", "requests_per_minute": 99999999999999999999999}', "requests_per_minute"),
        (b'{"name": "a", "expires_at": "tomorrow"}', "expires_at"),
        (b'{"name": "a", "id": "mine"}', None),
        (b"[", None),
    ],
)
async def test_bad_fields_are_the_clients(tmp_path, body, parameter):
    async with keyed(tmp_path, ADMIN) as (http, [admin]):
        error = error_of(await http.post("/admin/keys", content=body, headers=admin), 400)
        assert error["param"] == parameter
        assert len(http.store.list()) == 1


async def test_unknown_keys(tmp_path):
    async with keyed(tmp_path, ADMIN) as (http, [admin]):
        for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
            response = await http.request(method, f"/admin/keys/no';--{path}", json={}, headers=admin)
            assert error_of(response, 404)["code"] == "key_not_found"


async def test_usage_is_counted_by_key_model_and_day(tmp_path):
    async with keyed(tmp_path, ADMIN, {"requests_per_minute": 4, "name": "=1+1", "department": "sales"}) as (
        http,
        [admin, mine],
    ):
        usages = [(await ask(http, mine, "say:hi there", n=2)).json()["usage"] for _ in range(2)]
        await ask(http, mine, stream=True, text="say:hi there")
        assert (await ask(http, mine, temperature=-1)).status_code == 400
        assert (await ask(http, mine)).status_code == 429
        await asyncio.to_thread(http.accounts._ledger.flush)
        rows = (await http.get("/admin/usage", headers=admin)).json()["data"]
        assert [row["model"] for row in rows] == ["", "scripted"]
        row = rows[1]
        assert row["key_name"] == "=1+1"
        assert (row["requests"], row["errors"], row["rate_limited"]) == (4, 1, 0)
        assert rows[0]["rate_limited"] == 1
        answered = usages[0]["completion_tokens"] // 2
        assert row["generated_tokens"] == 5 * answered
        assert row["prompt_tokens"] == 3 * usages[0]["prompt_tokens"]
        assert row["cached_tokens"] > 0
        own = (await http.get("/me/usage", headers=mine)).json()
        assert own["data"] == rows
        assert own["limits"] == {"requests_per_minute": {"limit": 4, "used": 4}}
        text = (await http.get("/admin/usage?format=csv", headers=admin)).text
        assert next(csv.DictReader(io.StringIO(text)))["key_name"] == "'=1+1"
        assert (await http.get("/admin/usage?from=2999-01-01", headers=admin)).json()["data"] == []
        assert (await http.get("/admin/usage?key=nobody", headers=admin)).json()["data"] == []
        for query in ("from=yesterday", "to=2026-1-1", "format=xml"):
            assert (await http.get(f"/admin/usage?{query}", headers=admin)).status_code == 400
        assert (await http.get("/admin/keys", headers=admin)).json()["data"][1]["last_used_at"] > 0


async def test_nobody_sees_anothers_usage(tmp_path):
    async with keyed(tmp_path, {}, {}) as (http, [one, two]):
        await ask(http, one)
        await asyncio.to_thread(http.accounts._ledger.flush)
        assert (await http.get("/me/usage?key=" + http.store.find("key 0").id, headers=two)).json()["data"] == []


async def test_failures_in_mid_stream_are_errors(tmp_path, capfd):
    async with keyed(tmp_path, {}) as (http, [mine]):
        task = asyncio.create_task(ask(http, mine, "slow-loop:x", stream=True))
        await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 2)
        await ask(http, mine, "crash")
        assert (await task).status_code == 200
        await asyncio.to_thread(http.accounts._ledger.flush)
        (row,) = (await http.get("/me/usage", headers=mine)).json()["data"]
        assert (row["requests"], row["errors"]) == (2, 2)
        assert row["generated_tokens"] > 2
    capfd.readouterr()


async def test_usage_is_written_when_the_server_ends(tmp_path):
    async with keyed(tmp_path, {}) as (http, [mine]):
        await ask(http, mine)
    with KeyStore(tmp_path).transaction() as db:
        assert read_usage(db)[0].requests == 1


async def test_static_keys_are_counted_too(tmp_path):
    async with keyed(tmp_path, settings={"api_keys": ("a", "b")}) as (http, _):
        await ask(http, bearer("b"))
    with KeyStore(tmp_path).transaction() as db:
        assert [(row.key_id, row.key_name, row.requests) for row in read_usage(db)] == [("static-2", "", 1)]


async def test_a_broken_disk_fails_no_request_and_loses_no_count(tmp_path, caplog):
    async with keyed(tmp_path, {}) as (http, [mine]):
        path = http.accounts._ledger._database
        http.accounts._ledger._database = tmp_path / "nowhere" / "caudal.db"
        for _ in range(3):
            assert (await ask(http, mine)).status_code == 200
            assert not await asyncio.to_thread(http.accounts._ledger.flush)
        (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert error.startswith("usage cannot be written")
        http.accounts._ledger._database = path
        assert (await ask(http, mine)).status_code == 200
    with KeyStore(tmp_path).transaction() as db:
        assert read_usage(db)[0].requests == 4


def test_a_ledger_adds_to_what_others_have_written(tmp_path):
    store = KeyStore(tmp_path)
    for _ in range(2):
        ledger = UsageLedger(store.path, lambda: 86_400.0)
        for _ in range(3):
            ledger.add("k", "m", Usage(requests=2, prompt_tokens=5, generated_tokens=7, rate_limited=1))
        ledger.close()
    with store.transaction() as db:
        assert [(row.day, row.requests) for row in read_usage(db)] == [("1970-01-02", 12)]
        assert used_today(db, "1970-01-02") == {"k": (6, 72)}
        assert usage_csv(read_usage(db)).splitlines()[1] == "1970-01-02,k,,,m,12,30,0,42,0,6"


async def test_the_writer_writes_without_being_asked(tmp_path):
    store = KeyStore(tmp_path)
    ledger = UsageLedger(store.path)
    ledger.add("k", "m", Usage(requests=1))

    def written():
        db = sqlite3.connect(store.path)
        try:
            return db.execute("SELECT count(*) FROM usage").fetchone() == (1,)
        finally:
            db.close()

    await until(written)
    ledger.close()


async def test_the_day_goes_on_after_a_restart(tmp_path):
    async with keyed(tmp_path, {"requests_per_day": 3}) as (http, [mine]):
        assert [(await ask(http, mine)).status_code for _ in range(2)] == [200, 200]
    async with keyed(tmp_path) as (http, _):
        assert [(await ask(http, mine)).status_code for _ in range(3)] == [200, 429, 429]


async def test_limits_that_change_hold_at_once(tmp_path):
    async with keyed(tmp_path, {"requests_per_minute": 1}) as (http, [mine]):
        assert [(await ask(http, mine)).status_code for _ in range(2)] == [200, 429]
        http.store.change("key 0", KeyFields(requests_per_minute=3))
        assert [(await ask(http, mine)).status_code for _ in range(3)] == [200, 200, 429]


def test_a_server_that_was_started_yesterday_does_not_count_yesterdays_use_today(tmp_path):
    store = KeyStore(tmp_path)
    key = store.create(KeyFields(name="k", requests_per_day=2, tokens_per_day=10)).key
    now = [20_000 * 86_400.0 + 86_390]
    ledger = UsageLedger(store.path, lambda: now[0])
    ledger.add(key.id, "m", Usage(requests=2, prompt_tokens=10))
    ledger.close()
    for pause_s, refused in ((0, "requests_per_day"), (20, None)):
        accounts = Accounts(ServerSettings(state_dir=tmp_path), lambda: now[0], lambda: now[0])
        now[0] += pause_s
        refusal = accounts.limiter.begin(key)
        assert (refusal and refusal.limit_name) == refused
        accounts.close()
