from __future__ import annotations

import json
import math
from dataclasses import replace

import httpx
import pytest
from byte_tokenizer import ByteTokenizer
from conftest import make_config
from hypothesis import given
from hypothesis import strategies as st
from peer_app import FACTS, MODEL, BaseTokenizer, peer_app
from scripted_engine import ScriptedEngine

from caudal import __version__
from caudal.engine.local_client import LocalEngineClient
from caudal.errors import InvalidParameter
from caudal.server.app import create_app
from caudal.server.ollama.model_lists import parameter_size
from caudal.server.ollama.names import plain_name, tagged_name
from caudal.server.ollama.time_format import keep_alive_s, nanoseconds, timestamp
from caudal.server.settings import ServedModel, ServerSettings


@pytest.fixture
async def peer():
    async with peer_app() as client:
        yield client


async def get(http, path):
    response = await http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    return body["error"]


async def test_tags(peer):
    first, alias = (await get(peer, "/api/tags"))["models"]
    assert first == {
        "name": "org/Scripted:Q4",
        "model": "org/Scripted:Q4",
        "modified_at": "2023-11-14T22:13:20.250000000Z",
        "size": 986_000_000,
        "digest": "ab" * 32,
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "1.5B",
            "quantization_level": "Q4_K_M",
            "context_length": 32768,
            "embedding_length": 1536,
        },
        "capabilities": ["completion", "tools", "thinking", "insert"],
    }
    assert alias == {**first, "name": "scripted:latest", "model": "scripted:latest"}


async def test_ps(peer):
    (model,) = (await get(peer, "/api/ps"))["models"]
    assert (model["name"], model["context_length"], model["size_vram"]) == ("org/Scripted:Q4", 512, 0)
    assert model["expires_at"].endswith("Z")


@pytest.mark.parametrize(
    "body", [{"model": "scripted"}, {"name": "SCRIPTED:latest"}, {"model": "hf.co/org/scripted:q4"}]
)
async def test_show(peer, body):
    response = await peer.post("/api/show", json=body)
    shown = response.json()
    assert shown["capabilities"] == ["completion", "tools", "thinking", "insert"]
    assert shown["template"] == "{{ tools }} enable_thinking"
    assert shown["license"] == "apache-2.0"
    assert shown["model_info"] == {
        "general.architecture": "llama",
        "general.parameter_count": 1_543_000_000,
        "general.license": "apache-2.0",
        "llama.context_length": 512,  # what the server has room for, not what the file says
        "x.y": 1.5,
    }
    assert shown["parameters"].split() == ["num_ctx", "512"]
    assert shown["details"]["family"] == "llama"


async def test_a_model_of_which_nothing_is_known_is_listed_too():
    async with peer_app(BaseTokenizer(), model=ServedModel(name="m")) as http:
        (model,) = (await get(http, "/api/tags"))["models"]
        assert (model["name"], model["size"], model["capabilities"]) == ("m:latest", 0, ["completion"])
        assert (await http.post("/api/show", json={"model": "m"})).json()["model_info"]["general.architecture"] == ""


async def test_no_file_names_or_directories_are_told():
    async with peer_app(model=replace(MODEL, facts=replace(FACTS, file_name="secret.gguf"))) as http:
        for path in ("/api/tags", "/api/ps", "/v1/models"):
            assert "secret" not in (await http.get(path)).text
        assert "secret" not in (await http.post("/api/show", json={"model": "scripted"})).text


async def test_version_and_status(peer):
    assert await get(peer, "/api/version") == {"version": "0.30.0", "caudal": __version__}
    assert (await get(peer, "/api/status"))["cloud"]["disabled"] is True


@pytest.mark.parametrize("path", ["/", "/api/hello", "/v1/health", "/api/version", "/api/tags", "/version", "/ping"])
async def test_looking_is_answered(peer, path):
    for method in ("HEAD", "GET"):
        response = await peer.request(method, f"{path}?beta=true&x=%ff")
        assert response.status_code == 200
    assert (await peer.get(f"http://127.0.0.1/{path}//")).status_code == 200


async def test_pull_says_that_a_model_is_here(peer):
    response = await peer.post("/api/pull", json={"model": "scripted"})
    assert response.headers["content-type"] == "application/x-ndjson"
    statuses = [json.loads(line)["status"] for line in response.text.splitlines()]
    assert (statuses[0], statuses[-1]) == ("pulling manifest", "success")
    assert (await peer.post("/api/pull", json={"model": "scripted", "stream": False})).json() == {"status": "success"}
    assert "does not fetch" in error_of(await peer.post("/api/pull", json={"model": "other"}), 403)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("DELETE", "/api/delete", {"model": "scripted"}, 403),
        ("DELETE", "/api/delete", {"model": "other"}, 404),
        ("DELETE", "/api/delete", {}, 400),
        ("POST", "/api/copy", {"source": "scripted", "destination": "x"}, 403),
        ("POST", "/api/copy", {"source": "other", "destination": "x"}, 404),
        ("POST", "/api/copy", {"source": "other"}, 400),
        ("POST", "/api/create", {"model": "x", "from": "../../etc/passwd"}, 403),
        ("POST", "/api/push", {"model": "scripted"}, 403),
        ("POST", "/api/blobs/sha256:../../x", {}, 403),
        ("POST", "/api/blobs/sha256:abc", {}, 403),
        ("GET", "/api/blobs/sha256:abc", None, 404),
        ("POST", "/api/embed", {"model": "scripted", "input": "x"}, 400),
        ("POST", "/api/embeddings", {"model": "scripted", "prompt": "x"}, 400),
        ("POST", "/api/embed", {"model": "other", "input": ["x"]}, 404),
        ("POST", "/api/show", {"model": "other"}, 404),
    ],
)
async def test_what_this_server_does_not_do_is_said(peer, method, path, body, status):
    error_of(await peer.request(method, path, json=body), status if "%2F" not in path else 404)


async def test_a_loading_model_is_listed_and_health_waits():
    client = LocalEngineClient(ScriptedEngine(make_config()))
    app = create_app(client, ByteTokenizer(), MODEL, ServerSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as http:
        response = await http.get("/health")
        assert response.status_code == 503
        assert response.json()["error"] == {
            "code": 503,
            "message": "Loading model",
            "type": "unavailable_error",
            "param": None,
        }
        assert response.headers["retry-after"]
        assert (await get(http, "/api/tags"))["models"]
        assert (await get(http, "/models"))["data"][0]["status"] == {"value": "loading"}


@given(st.text(max_size=20))
def test_names_of_one_model_are_plainly_equal(name):
    assert plain_name(tagged_name(name)) == plain_name(name) or name.rpartition("/")[2] == ""
    assert plain_name(name.upper().lower()) == plain_name(name.upper())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        (0, 0.0),
        (300, 300.0),
        (-1, math.inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("-1m", math.inf),
        ("-1", math.inf),
        ("250ms", 0.25),
        ("0", 0.0),
    ],
)
def test_keep_alive(value, seconds):
    assert keep_alive_s(value) == seconds


@pytest.mark.parametrize("value", ["soon", "5", "m5", "5m soon", "1" * 400, "9" * 400 + "s", "5 m", "--1"])
def test_a_keep_alive_that_makes_no_sense(value):
    if value == "5":
        assert keep_alive_s(value) == 5.0  # Go would refuse it; nothing else could be meant
        return
    with pytest.raises(InvalidParameter):
        keep_alive_s(value)


@given(st.integers(0, 2**62))
def test_timestamps_keep_their_nanoseconds(unix_ns):
    assert int(timestamp(unix_ns)[-10:-1]) == unix_ns % 10**9


@given(st.floats(-10, 1e6))
def test_durations_are_never_negative(seconds):
    assert nanoseconds(seconds) >= 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, ""), (999, "999"), (134_515_008, "134.5M"), (1_543_714_304, "1.5B"), (2 * 10**12, "2.0T")]
)
def test_parameter_sizes(count, text):
    assert parameter_size(count) == text
