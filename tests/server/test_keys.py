"""Keys on a running app: who gets in, to what, and how often."""

from __future__ import annotations

import asyncio
import hmac
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from conftest import in_process
from test_openai_routes import chat, complete, error_of, events, until

from caudal.server.keys.key import KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.limiter import Limiter
from caudal.server.settings import ServerSettings


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


@asynccontextmanager
async def keyed(tmp_path, *fields, settings=None, **config):
    """An app with keys; yields its client and a list of (id, headers)."""
    store = KeyStore(tmp_path)
    made = [store.create(KeyFields(**{"name": f"key {i}", **each})) for i, each in enumerate(fields)]
    chosen = {"state_dir": tmp_path, **(settings or {})}
    async with in_process(ServerSettings(**chosen), **config) as http:
        http.store = store
        yield http, [bearer(each.secret) for each in made]


async def ask(http, headers, text="say:hi", **fields):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}
    path = "/v1/chat/completions" if body["model"] else "/chat/completions"  # which takes the default
    return await http.post(path, json=body, headers=headers)


async def test_a_key_opens_and_nothing_else_does(tmp_path):
    async with keyed(tmp_path, {}, settings={"api_keys": ("static",)}) as (http, [mine]):
        secret = mine["authorization"].removeprefix("Bearer ")
        for headers in (mine, {"x-api-key": secret}, {"api-key": secret}, bearer("static")):
            assert (await ask(http, headers)).status_code == 200
        for headers in ({}, bearer(secret[:-1]), bearer(secret + "x"), bearer("ck-"), {"authorization": secret}):
            assert error_of(await ask(http, headers), 401)["code"] == "invalid_api_key"
        assert (await http.get("/health")).status_code == 200


async def test_a_key_in_the_url_opens_nothing(tmp_path):
    async with keyed(tmp_path, {}) as (http, [mine]):
        secret = mine["authorization"].removeprefix("Bearer ")
        for name in ("key", "api_key", "api-key", "x-api-key", "token", "access_token", "authorization"):
            assert (await http.get("/v1/models", params={name: secret})).status_code == 401
        assert (await http.get(f"/v1/models/{secret}")).status_code == 401
        assert (await http.get("/v1/models", headers={"cookie": f"api_key={secret}"})).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Basic Y2stYTpi")],
        [(b"x-api-key", b"\xc3\x28" * 5000)],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")],
        [(b"x-api-key", b"' OR 1=1 --")],
    ],
)
async def test_odd_headers_are_strangers(tmp_path, headers):
    async with keyed(tmp_path, {}) as (http, _):
        assert (await http.get("/v1/models", headers=headers)).status_code == 401


async def test_how_long_a_comparison_takes_tells_nothing(monkeypatch):
    calls = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: (calls.append(len(a)), compare(a, b))[1])
    async with in_process(ServerSettings(api_keys=("first", "second", "third"))) as http:
        counts = []
        for given in ("first", "third", "firsx", "", "x" * 3000):
            calls.clear()
            await http.get("/v1/models", headers={"x-api-key": given})
            counts.append(list(calls))
    assert counts == [[32] * 6] * 5  # hashes of one length, all of them, whichever is right


async def test_expired_and_revoked_keys_open_nothing(tmp_path):
    async with keyed(tmp_path, {"expires_at": time.time() - 1}, {}, {"expires_at": time.time() + 60}) as (http, keys):
        expired, revoked, valid = keys
        assert "expired" in error_of(await ask(http, expired), 401)["message"]
        assert (await ask(http, revoked)).status_code == 200
        http.store.revoke("key 1")
        assert "revoked" in error_of(await ask(http, revoked), 401)["message"]
        assert (await ask(http, valid)).status_code == 200


async def test_what_another_process_changes_holds_at_once(tmp_path):
    async with keyed(tmp_path, {}) as (http, [mine]):
        assert (await ask(http, mine)).status_code == 200
        command = [sys.executable, "-m", "caudal.cli.main", "keys", "revoke", "key 0", "--state-dir", str(tmp_path)]
        env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": ""}
        done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, check=True)
        assert b"revoked_at" in done.stdout
        assert (await ask(http, mine)).status_code == 401


async def test_the_first_key_closes_an_open_server_and_revoking_the_last_does_not_open_it(tmp_path):
    async with in_process(ServerSettings(state_dir=tmp_path)) as http:
        assert (await ask(http, {})).status_code == 200
        KeyStore(tmp_path).create(KeyFields(name="first"))
        assert (await ask(http, {})).status_code == 401
        KeyStore(tmp_path).revoke("first")
        assert (await ask(http, {})).status_code == 401


async def test_an_open_server_still_keeps_pages_out(tmp_path):
    async with in_process(ServerSettings(state_dir=tmp_path)) as http:
        assert (await http.get("/v1/models", headers={"origin": "https://evil.example"})).status_code == 403


ROUTES = {
    ("POST", "/v1/chat/completions"): "inference",
    ("POST", "/tokenize"): "inference",
    ("POST", "/v1/messages"): "inference",
    ("POST", "/api/chat"): "inference",
    ("GET", "/v1/models"): "models:read",
    ("GET", "/models/scripted"): "models:read",
    ("GET", "/api/tags"): "models:read",
    ("POST", "/api/show"): "models:read",
    ("POST", "/api/pull"): "models:write",
    ("POST", "/api/copy"): "models:write",
    ("POST", "/api/create"): "models:write",
    ("POST", "/api/push"): "models:write",
    ("DELETE", "/api/delete"): "models:write",
    ("POST", "/models/unload"): "models:write",
    ("GET", "/metrics"): "metrics",
    ("GET", "/admin/keys"): "admin",
    ("POST", "/admin/keys"): "admin",
    ("PATCH", "/admin/keys/x"): "admin",
    ("DELETE", "/admin/keys/x"): "admin",
    ("GET", "/admin/usage"): "admin",
    ("GET", "/admin/anything"): "admin",
    ("GET", "/admin"): "admin",
}


async def test_each_scope_opens_its_routes_alone(tmp_path):
    scopes = ["inference", "models:read", "models:write", "metrics", "admin"]
    async with keyed(tmp_path, *({"scopes": (scope,)} for scope in scopes)) as (http, keys):
        for (method, path), needs in ROUTES.items():
            for scope, headers in zip(scopes, keys, strict=True):
                response = await http.request(method, path, headers=headers)
                opens = scope == needs or (scope, needs) == ("inference", "models:read")
                assert (response.status_code == 403) != opens, (method, path, scope, response.text)
        for headers in keys:
            assert (await http.get("/me/usage", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "path", ["//admin/keys", "/admin//keys/", "/admin/keys/../keys", "/ADMIN/keys", "/v1/admin/keys"]
)
async def test_no_spelling_of_the_path_gets_around_the_scope(tmp_path, path):
    async with keyed(tmp_path, {}, settings={"api_keys": ("static",)}) as (http, [mine]):
        for headers in (mine, bearer("static")):
            response = await http.get(path, headers=headers)
            assert response.status_code in (403, 404)
            assert "key 0" not in response.text


async def test_nobody_administers_a_server_without_keys(tmp_path):
    async with in_process(ServerSettings(state_dir=tmp_path)) as http:
        for method, path in (("GET", "/admin/keys"), ("POST", "/admin/keys"), ("GET", "/admin/usage")):
            assert error_of(await http.request(method, path), 403)["code"] == "insufficient_permissions"
    async with in_process() as http:
        assert (await http.get("/admin/keys")).status_code == 403
        assert (await http.get("/me/usage")).status_code == 404


async def test_a_forbidden_model_looks_like_an_unknown_one(tmp_path):
    async with keyed(tmp_path, {"models": ("llama*",)}, {"models": ("org/*",)}, {}) as (http, [none, by_alias, every]):
        forbidden = error_of(await ask(http, none), 404)
        unknown = error_of(await ask(http, none, model="nowhere"), 404)
        assert forbidden["code"] == unknown["code"] == "model_not_found"
        assert forbidden["message"].replace("scripted", "nowhere") == unknown["message"]
        assert (await ask(http, none, model=None)).status_code == 404
        assert (await complete(http, "x")).status_code == 401
        assert (await http.get("/v1/models", headers=none)).json()["data"] == []
        assert (await http.get("/v1/models/scripted", headers=none)).status_code == 404
        assert (await ask(http, by_alias)).status_code == 200
        assert (await ask(http, every, model=None)).status_code == 200
        tokenized = await http.post("/tokenize", json={"prompt": "x", "model": "scripted"}, headers=none)
        assert tokenized.status_code == 404


async def test_the_keys_priority_can_only_be_lowered(tmp_path):
    async with keyed(tmp_path, {"priority": 3}, settings={"api_keys": ("static",)}) as (http, [mine]):
        seen = []
        add = http.engine.add_request
        http.engine.add_request = lambda request: (seen.append((request.tenant, request.priority)), add(request))[1]
        for headers in (mine, bearer("static")):
            for asked in (None, -5, 3, 9):
                await ask(http, headers, priority=asked)
        assert [priority for _, priority in seen] == [3, 3, 3, 9, 0, -5, 3, 9]
        assert Counter(tenant for tenant, _ in seen) == {http.store.find("key 0").id: 4, "static-1": 4}


async def test_a_hundred_at_once_against_a_quota_of_ten_are_exactly_ten(tmp_path):
    async with keyed(tmp_path, {"requests_per_minute": 10}) as (http, [mine]):
        responses = await asyncio.gather(*(ask(http, mine) for _ in range(100)))
        assert Counter(response.status_code for response in responses) == {200: 10, 429: 90}
        for response in responses:
            assert response.headers["x-ratelimit-limit-requests"] == "10"
            if response.status_code == 429:
                assert error_of(response, 429)["code"] == "rate_limit_exceeded"
                assert error_of(response, 429)["type"] == "rate_limit_error"
                assert 1 <= int(response.headers["retry-after"]) <= 61
                assert response.headers["x-ratelimit-remaining-requests"] == "0"
                assert re.fullmatch(r"1m[01]s|5\ds", response.headers["x-ratelimit-reset-requests"])


async def test_after_the_wait_requests_pass_again(tmp_path):
    async with keyed(tmp_path, {"requests_per_minute": 1}) as (http, [mine]):
        now = [1000.0]
        http.accounts.limiter = Limiter(lambda: now[0], lambda: now[0])
        assert (await ask(http, mine)).status_code == 200
        response = await ask(http, mine)
        now[0] += int(response.headers["retry-after"]) - 1.5
        assert (await ask(http, mine)).status_code == 429
        now[0] += 1.5
        assert (await ask(http, mine)).status_code == 200


async def test_parallel_requests_are_limited_and_let_go(tmp_path):
    async with keyed(tmp_path, {"max_parallel": 2}) as (http, [mine]):
        tasks = [asyncio.create_task(ask(http, mine, "slow-loop:x", max_tokens=30, stream=True)) for _ in range(2)]
        await until(lambda: len(http.engine.running) == 2)
        assert (await ask(http, mine)).status_code == 429
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert (await ask(http, mine)).status_code == 200
        assert (await tasks[1]).status_code == 200
        assert (await ask(http, mine, max_tokens="x")).status_code == 400
        used = (await http.get("/me/usage", headers=mine)).json()["limits"]
        assert used["max_parallel"] == {"limit": 2, "used": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_reserved_and_settled(tmp_path, stream):
    async with keyed(tmp_path, {"tokens_per_minute": 200}) as (http, [mine]):
        limits = {"max_tokens": 100, "stream": stream}
        first = await ask(http, mine, "say:hi", **limits)
        assert first.status_code == 200
        used = (await http.get("/me/usage", headers=mine)).json()["limits"]["tokens_per_minute"]["used"]
        assert used == len("<user>say:hi\n<assistant>") + 1 + len("hi") + 1
        tasks = [asyncio.create_task(ask(http, mine, "slow-loop:x", **{**limits, "max_tokens": 50})) for _ in range(5)]
        responses = await asyncio.gather(*tasks)
        # 29 are used, and each may need 25 + 50: two fit.
        assert Counter(response.status_code for response in responses) == {200: 2, 429: 3}
        assert int(responses[-1].headers["retry-after"]) >= 1


async def test_a_request_that_never_fits_is_a_400(tmp_path):
    async with keyed(tmp_path, {"tokens_per_minute": 20}) as (http, [mine]):
        assert error_of(await ask(http, mine, "x" * 50), 400)["code"] == "request_exceeds_limit"
        assert "retry-after" not in (await ask(http, mine, "x" * 50)).headers


async def test_an_answer_without_max_tokens_ends_where_the_quota_does(tmp_path):
    async with keyed(tmp_path, {"tokens_per_minute": 400}) as (http, [mine]):
        body = (await ask(http, mine, "loop:x")).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 256
        assert (await ask(http, mine, "loop:x")).status_code == 429


async def test_several_answers_count_their_prompt_once(tmp_path):
    async with keyed(tmp_path, {"tokens_per_minute": 1000}) as (http, [mine]):
        body = (await ask(http, mine, "say:hi", n=3, max_tokens=10)).json()
        used = (await http.get("/me/usage", headers=mine)).json()["limits"]["tokens_per_minute"]["used"]
        assert used == body["usage"]["total_tokens"]


async def test_what_the_client_leaves_is_settled(tmp_path):
    async with keyed(tmp_path, {"tokens_per_minute": 1000}) as (http, [mine]):
        task = asyncio.create_task(ask(http, mine, "slow-loop:x", max_tokens=400, stream=True))
        await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        used = (await http.get("/me/usage", headers=mine)).json()["limits"]["tokens_per_minute"]["used"]
        assert 25 < used < 200


async def test_one_key_cannot_fill_the_server(tmp_path):
    async with keyed(tmp_path, {}, {}, settings={"max_open_requests": 8}) as (http, [greedy, other]):
        tasks = [asyncio.create_task(ask(http, greedy, "slow-loop:x", max_tokens=60)) for _ in range(20)]
        await until(lambda: len(http.engine.running) == 4 and sum(task.done() for task in tasks) == 16)
        assert (await ask(http, other)).status_code == 200
        responses = await asyncio.gather(*tasks)
        assert Counter(response.status_code for response in responses) == {200: 4, 429: 16}
        refused = next(response for response in responses if response.status_code == 429)
        assert "kept for other keys" in error_of(refused, 429)["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(await ask(http, greedy, n=5), 400)["param"] == "n"


async def test_an_answer_carries_no_header_of_anybody_elses_making(tmp_path):
    async with keyed(tmp_path, {"requests_per_minute": 9}) as (http, [mine]):
        response = await ask(http, {**mine, "x-request-id": "mine\tevil"})
        assert re.fullmatch(r"req_[0-9a-f]{24}", response.headers["x-request-id"])


async def test_no_secret_is_logged(tmp_path, caplog, capfd):
    caplog.set_level("DEBUG")
    async with keyed(tmp_path, {}, settings={"audit_log": "full", "api_keys": ("staticsecret",)}) as (http, [mine]):
        secret = mine["authorization"].removeprefix("Bearer ")
        await ask(http, mine, f"say:my key is {secret}")
        await ask(http, bearer("staticsecret"))
        await ask(http, bearer(secret + "x"))
        await http.get(f"/v1/models?key={secret}", headers=mine)
        await http.get(f"/v1/models/{secret}")
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    logged = "".join(record.getMessage() for record in caplog.records if not record.name.startswith("httpx"))
    out, err = capfd.readouterr()
    # The random part may hold "-" itself.
    for text in (secret, secret.split("-", 2)[2], "staticsecret"):
        assert text.encode() not in written
        assert text not in logged + out + err


async def test_streams_work_with_keys(tmp_path):
    async with keyed(tmp_path, {}) as (http, [mine]):
        assert events(await ask(http, mine, stream=True))[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_without_keys_nothing_is_limited_or_kept(tmp_path):
    async with in_process(ServerSettings(state_dir=tmp_path)) as http:
        response = await chat(http, "say:hi")
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]
    assert not list(tmp_path.glob("audit-*"))
