"""/api/pull, /api/copy and /api/delete of a server that lets clients change its models."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from managed_app import fill, managed_app, tiny_gguf
from test_audit_over_http import records_in
from test_keys import bearer
from test_launch import is_running
from test_local_client_bodies import VALUES
from test_ollama_models import error_of
from test_openai_routes import until
from tiny_hub import tiny_hub, use_hub

from caudal.server.keys.key import KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.model_changes import MAX_PULLS
from caudal.server.settings import ServerSettings

pytestmark = pytest.mark.usefixtures("tests_importable")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with tiny_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        yield fill(hub)


@pytest.fixture
async def http(hub, tmp_path):
    async with managed_app(tmp_path, "main") as http:
        yield http


async def pull(http, name, *, stream=False, **fields):
    return await http.post("/api/pull", json={"model": name, "stream": stream}, **fields)


async def copy(http, source, destination, **fields):
    return await http.post("/api/copy", json={"source": source, "destination": destination}, **fields)


async def delete(http, name, **fields):
    return await http.request("DELETE", "/api/delete", json={"model": name}, **fields)


async def names(http, **fields):
    return [card["id"] for card in (await http.get("/v1/models", **fields)).json()["data"]]


async def say(http, model, text="hi", *, how="say"):
    body = {"model": model, "messages": [{"role": "user", "content": f"{how}:{text}"}], "stream": False}
    return await http.post("/api/chat", json=body)


def lines_of(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def test_a_pull_tells_its_progress_and_the_model_answers(http, hub, tmp_path):
    first, *middle, verifying, writing, last = lines_of(await http.post("/api/pull", json={"model": "org/m"}))
    assert first == {"status": "pulling manifest"}
    digest = hashlib.sha256(tiny_gguf()).hexdigest()
    size = len(tiny_gguf())
    assert middle[-1] == {
        "status": f"pulling {digest[:12]}", "digest": f"sha256:{digest}", "total": size, "completed": size,
    }  # fmt: skip
    assert sorted(line["completed"] for line in middle) == [line["completed"] for line in middle]
    assert [line["status"] for line in (verifying, writing, last)] == [
        "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    assert await names(http) == ["main", "org/m"]
    assert [model["name"] for model in (await http.get("/api/tags")).json()["models"]] == [
        "main:latest",
        "org/m:latest",
    ]
    assert (await say(http, "org/m:latest")).json()["message"]["content"] == "hi"
    assert (tmp_path / "models/org/m.gguf").is_symlink()


async def test_a_pull_without_a_stream_says_one_word(http, hub):
    response = await pull(http, "hf.co/org/m:Q8_0")
    assert (response.status_code, response.json()) == (200, {"status": "success"})
    assert await names(http) == ["main", "hf.co/org/m:Q8_0"]


async def test_what_is_here_is_not_fetched(http, hub):
    await pull(http, "org/m")
    asked = len(hub.requests)
    hub.repos.clear()
    for name in ("org/m", "ORG/M:latest", "hf.co/org/m", "main", "main:latest"):
        assert (await pull(http, name)).json() == {"status": "success"}
        assert [line["status"] for line in lines_of(await pull(http, name, stream=True))][-1] == "success"
    assert len(hub.requests) == asked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("org/none", 404, "has no repository 'org/none'"),
        ("org/m:Q2_K", 404, "has nothing of Q2_K"),
        ("llama3.2", 400, "ORG/REPO"),
        ("../../etc/passwd", 400, "cannot pull"),
        ("org/m/../../x.gguf", 400, "begins with a dot"),
        ("http://127.0.0.1:8000/x/y", 400, "cannot pull"),
        ("a" * 5000, 400, "longer than 500 characters"),
        ("", 400, "model is missing"),
    ],
)
async def test_what_cannot_be_pulled(http, stream, name, status, says):
    assert says in error_of(await pull(http, name, stream=stream), status)
    assert await names(http) == ["main"]


async def test_a_failure_after_the_first_news_is_a_line_of_the_stream(http, hub, tmp_path):
    hub.wrong = {"m-Q4_K_M.gguf"}
    hub.hold_after = 1000
    asking = asyncio.create_task(pull(http, "org/m", stream=True))
    await until(lambda: hub.requests)
    hub.go_on.set()
    *_, last = lines_of(await asking)
    assert set(last) == {"error"}
    assert "the server sent" in last["error"]
    assert await names(http) == ["main"]
    assert list((tmp_path / "models").iterdir()) == []


async def test_two_who_pull_the_same_share_one_download(http, hub):
    hub.hold_after = 1000
    asking = [
        asyncio.create_task(pull(http, name, stream=stream)) for name, stream in (("org/m", True), ("Org/M", False))
    ]
    await until(lambda: hub.requests)
    await asyncio.sleep(0.05)
    hub.go_on.set()
    streamed, whole = await asyncio.gather(*asking)
    assert lines_of(streamed)[-1] == whole.json() == {"status": "success"}
    assert len(hub.requests) == 1


async def test_too_many_at_a_time_are_told_to_come_again(http, hub):
    hub.hold_after = 0
    for number in range(MAX_PULLS + 1):
        hub.repos[f"org/x{number}"] = {"x.gguf": tiny_gguf() + bytes([number])}
    asking = [asyncio.create_task(pull(http, f"org/x{number}")) for number in range(MAX_PULLS)]
    await until(lambda: len(hub.requests) == MAX_PULLS)
    response = await pull(http, f"org/x{MAX_PULLS}")
    assert "are being pulled already" in error_of(response, 429)
    assert int(response.headers["retry-after"]) >= 1
    hub.go_on.set()
    assert {response.status_code for response in await asyncio.gather(*asking)} == {200}
    assert (await pull(http, f"org/x{MAX_PULLS}")).status_code == 200


async def test_faults_of_the_machine_have_their_status_and_name_no_place(http, hub, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("caudal.hub.partial_file._check_space", full)
        for stream in (False, True):
            text = error_of(await pull(http, "org/m", stream=stream), 507)
            assert "disk is full" in text
            assert str(tmp_path) not in text
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert "cannot ask" in error_of(await pull(http, "org/m"), 502)
        patch.setenv("HF_HUB_OFFLINE", "1")
        assert "forbids" in error_of(await pull(http, "org/m"), 403)
    assert await names(http) == ["main"]
    assert (await pull(http, "org/m")).status_code == 200


async def test_a_file_that_is_no_model_is_listed_and_refused_where_it_is_asked(http):
    assert (await pull(http, "org/broken")).status_code == 200
    assert await names(http) == ["main", "org/broken"]
    assert "cannot be loaded" in error_of(await say(http, "org/broken"), 500)
    assert (await delete(http, "org/broken")).status_code == 200
    assert await names(http) == ["main"]


async def test_a_copy_answers_and_outlives_its_model(http, hub):
    await pull(http, "org/m")
    response = await copy(http, "org/m", "mine:latest")
    assert (response.status_code, response.content) == (200, b"")
    assert await names(http) == ["main", "mine", "org/m"]
    assert (await copy(http, "org/m", "mine")).status_code == 200  # once more changes nothing
    assert (await delete(http, "org/m")).status_code == 200
    assert (await say(http, "mine", "still here")).json()["message"]["content"] == "still here"
    error_of(await say(http, "org/m"), 404)


@pytest.mark.parametrize(
    ("source", "destination", "status", "says"),
    [
        ("gone", "x", 404, "'gone' not found"),
        ("org/m", "main", 409, "already means a model"),
        ("org/m", "n", 409, "already means a model"),
        ("org/m", "../x", 400, "path separator"),
        ("org/m", "/etc/x", 400, "path separator"),
        ("org/m", ".x", 400, "begins with a dot"),
        ("org/m", "x\0", 400, "cannot be shown"),
        ("org/m", "x" * 300, 400, "longer than 200 bytes"),
        ("main", "x", 403, "was given by name"),
        ("org/m", "", 400, "source or destination is missing"),
    ],
)
async def test_what_cannot_be_copied(http, source, destination, status, says):
    for name in ("org/m", "org/n"):
        await pull(http, name)
    assert says in error_of(await copy(http, source, destination), status)
    assert await names(http) == ["main", "org/m", "org/n"]


async def test_a_loaded_model_is_deleted_and_unloaded(http, hub, tmp_path):
    await pull(http, "org/m")
    assert (await say(http, "org/m")).status_code == 200
    (pid,) = [status.process_id for status in http.models.statuses() if status.name == "org/m"]
    response = await delete(http, "org/m:latest")
    assert (response.status_code, response.content) == (200, b"")
    assert await names(http) == ["main"]
    error_of(await say(http, "org/m"), 404)
    assert [status.name for status in http.models.statuses()] == ["main"]
    assert not is_running(pid)
    assert list(hub.cache.iterdir()) == list((tmp_path / "models").iterdir()) == []
    error_of(await delete(http, "org/m"), 404)
    assert (await pull(http, "org/m")).status_code == 200
    assert (await say(http, "org/m", "again")).json()["message"]["content"] == "again"


async def test_a_model_in_use_is_deleted_and_its_answer_comes_to_its_end(http, hub):
    await pull(http, "org/m")
    await say(http, "org/m")
    talking = asyncio.create_task(say(http, "org/m", "y" * 60, how="slow-say"))
    await until(lambda: any(status.in_use for status in http.models.statuses()))
    assert (await delete(http, "org/m")).status_code == 200
    assert await names(http) == ["main"]
    error_of(await say(http, "org/m"), 404)
    assert not talking.done()
    assert (await talking).json()["message"]["content"] == "y" * 60
    await until(lambda: [status.name for status in http.models.statuses()] == ["main"], timeout_s=20)


async def test_a_model_given_by_name_is_not_deleted(http, tmp_path):
    for name in ("main", "MAIN:latest"):
        assert "was given by name" in error_of(await delete(http, name), 403)
    assert (tmp_path / "main.gguf").exists()
    assert await names(http) == ["main"]


async def test_a_server_that_was_not_told_to_changes_nothing(hub, tmp_path):
    async with managed_app(tmp_path, "main", manages=False) as http:
        (tmp_path / "models/m.gguf").write_bytes(tiny_gguf())
        for response in (await pull(http, "org/m"), await delete(http, "main"), await copy(http, "main", "x")):
            assert "--models-dir DIR --manage-models" in error_of(response, 403)
        assert (await pull(http, "main")).json() == {"status": "success"}
    assert not hub.cache.exists()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["m.gguf"]


async def test_a_server_without_any_model_begins_with_a_pull(hub, tmp_path):
    async with managed_app(tmp_path) as http:
        assert (await http.get("/api/tags")).json() == {"models": []}
        assert (await http.get("/health")).status_code == 200
        assert "this server has no model" in (await http.get("/v1/models/x")).text
        error_of(await delete(http, "x"), 404)
        assert (await pull(http, "org/m")).status_code == 200
        assert (await say(http, "org/m")).json()["message"]["content"] == "hi"


def keyed(tmp_path, *fields):
    store = KeyStore(tmp_path / "state")
    return [bearer(store.create(KeyFields(name=f"key {i}", **each)).secret) for i, each in enumerate(fields)]


async def test_only_keys_with_the_scope_change_models(hub, tmp_path):
    scopes = ("inference", "models:read", "metrics", "admin")
    *others, writer = keyed(tmp_path, *({"scopes": (scope,)} for scope in (*scopes, "models:write")))
    app_settings = ServerSettings(state_dir=tmp_path / "state", api_keys=("static",))
    async with managed_app(tmp_path, "main", settings=app_settings) as http:
        assert (await pull(http, "org/m", headers=writer)).status_code == 200
        for headers, status in (*((headers, 403) for headers in others), ({}, 401), (bearer("ck-wrong"), 401)):
            for ask, arguments in ((pull, ["org/n"]), (pull, ["org/m"]), (copy, ["org/m", "x"]), (delete, ["org/m"])):
                response = await ask(http, *arguments, headers=headers)
                assert response.status_code == status, response.text
                assert "models:write" in response.text or status == 401
        assert await names(http, headers=bearer("static")) == ["main", "org/m"]
        assert (await copy(http, "org/m", "x", headers=writer)).status_code == 200
        assert (await delete(http, "x", headers=bearer("static"))).status_code == 200


async def test_a_key_for_some_models_changes_only_those(hub, tmp_path):
    wide, narrow = keyed(
        tmp_path,
        {"scopes": ("models:write", "models:read")},
        {"scopes": ("models:write",), "models": ("org/m*", "team-*")},
    )
    async with managed_app(tmp_path, "main", settings=ServerSettings(state_dir=tmp_path / "state")) as http:
        assert (await pull(http, "org/n", headers=wide)).status_code == 200
        for name in ("org/n", "org/none", "hf.co/org/m"):  # as if it were not here
            assert "this key may not use" in error_of(await pull(http, name, headers=narrow), 403)
        assert (await pull(http, "org/m", headers=narrow)).status_code == 200
        assert "may not use" in error_of(await copy(http, "org/m", "other", headers=narrow), 403)
        assert (await copy(http, "org/m", "team-m", headers=narrow)).status_code == 200
        for name in ("org/n", "main"):
            error_of(await delete(http, name, headers=narrow), 404)
            error_of(await copy(http, name, "team-x", headers=narrow), 404)
        assert (await delete(http, "team-m", headers=narrow)).status_code == 200
        assert await names(http, headers=wide) == ["main", "org/m", "org/n"]


async def test_the_audit_log_says_who_changed_what(hub, tmp_path):
    writer, reader = keyed(tmp_path, {"scopes": ("models:write",)}, {"scopes": ("models:read",)})
    async with managed_app(tmp_path, settings=ServerSettings(state_dir=tmp_path / "state")) as http:
        await pull(http, "org/m:latest", headers=writer)
        await pull(http, "org/none", headers=writer)
        await copy(http, "ORG/M", "mine:latest", headers=writer)
        await delete(http, "mine", headers=writer)
        await delete(http, "org/m", headers=reader)
    told = [(r["key_name"], r["method"], r["route"], r["status"], r["model"]) for r in records_in(tmp_path / "state")]
    assert told == [
        ("key 0", "POST", "/api/pull", 200, "org/m"),
        ("key 0", "POST", "/api/pull", 404, "org/none"),
        ("key 0", "POST", "/api/copy", 200, "org/m -> mine"),
        ("key 0", "DELETE", "/api/delete", 200, "mine"),
        ("key 1", "DELETE", "/api/delete", 403, ""),
    ]


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"host": "evil.example"}, {"origin": "null"}, {"host": "127.0.0.1.evil"}],
)
async def test_pages_and_rebound_names_change_nothing(http, tmp_path, headers):
    await pull(http, "org/m")
    for response in (
        await pull(http, "org/n", headers=headers),
        await copy(http, "org/m", "x", headers=headers),
        await delete(http, "org/m", headers=headers),
    ):
        assert response.status_code == 403
        assert response.json()["error"]
    assert await names(http) == ["main", "org/m"]


async def test_an_allowed_origin_may_and_others_may_not(hub, tmp_path):
    app_settings = ServerSettings(allowed_origins=("https://app.example",))
    async with managed_app(tmp_path, settings=app_settings) as http:
        good, bad = {"origin": "https://app.example"}, {"origin": "https://evil.example"}
        assert (await pull(http, "org/m", headers=good)).status_code == 200
        asks = {"access-control-request-method": "DELETE"}
        assert (await http.options("/api/delete", headers={**good, **asks})).status_code == 200
        assert (await http.options("/api/delete", headers={**bad, **asks})).status_code == 400
        assert (await delete(http, "org/m", headers=bad)).status_code == 403
        assert (await delete(http, "org/m", headers=good)).status_code == 200


BODIES = st.dictionaries(
    st.sampled_from(["model", "name", "source", "destination", "stream", "insecure"]),
    VALUES | st.sampled_from(["main", "org/m", "hf.co/a/b", "../x", "a/b:c", "x\0y", "é/漢", "org/m/x.gguf", "/", ":"]),
    max_size=4,
)


@given(body=BODIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_is_a_failure_of_the_server(tmp_path, monkeypatch, body):
    async def ask():
        async with managed_app(tmp_path, "main") as http, asyncio.timeout(20):
            content = json.dumps(body)
            return [
                await http.request(method, path, content=content)
                for method, path in (("POST", "/api/pull"), ("POST", "/api/copy"), ("DELETE", "/api/delete"))
            ]

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    for response in asyncio.run(ask()):
        assert response.status_code < 500, response.text
    assert {path.name for path in tmp_path.iterdir()} == {"models", "main.gguf"}
    assert list((tmp_path / "models").iterdir()) == []
