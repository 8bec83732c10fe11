"""The official ollama client over real sockets."""

from __future__ import annotations

import pytest
from conftest import make_config, real_server
from managed_app import fill, tiny_gguf
from scripted_engine import ScriptedEngine
from test_launch import Server
from tiny_hub import tiny_hub, use_hub

from caudal.engine.local_client import LocalEngineClient

ollama = pytest.importorskip("ollama", reason="needs the extra `test`: runs in CI")


@pytest.fixture(scope="module")
def client():
    with real_server(lambda: LocalEngineClient(ScriptedEngine(make_config()))) as (url, _):
        client = ollama.Client(host=url)
        yield client
        client._client.close()


def say(text):
    return [{"role": "user", "content": f"say:{text}"}]


def test_chat(client):
    answer = client.chat("scripted", messages=say("añ 🎉"), options={"num_ctx": 4096}, keep_alive="5m", logprobs=True)
    assert answer.message.content == "añ 🎉"
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.eval_count == len("añ 🎉".encode()) + 1
    assert answer.logprobs[0].logprob == -0.5


def test_chat_stream(client):
    *parts, last = client.chat("scripted:latest", messages=say("añ 🎉"), stream=True)
    assert "".join(part.message.content for part in parts) == "añ 🎉"
    assert last.done
    assert last.total_duration > 0


def test_tools_reach_the_server(client):
    def look(at: str) -> str:
        """Look at a place.

        Args:
            at: the place.
        """
        return at

    with pytest.raises(ollama.ResponseError, match="does not support tools"):  # this model has no template
        client.chat("scripted", messages=say("x"), tools=[look])


def test_generate(client):
    answer = client.generate("scripted", "say:x", raw=True)
    assert (answer.response, answer.done_reason) == ("x", "stop")
    assert "".join(part.response for part in client.generate("scripted", "say:abc", stream=True)) == "abc"


def test_loading_by_asking_nothing(client):
    assert client.generate("scripted").done_reason == "load"


def test_lists(client):
    assert [model.model for model in client.list().models] == ["scripted:latest", "org/other:tag"]
    assert client.ps().models[0].context_length == 512
    shown = client.show("scripted")
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo["general.architecture"] == ""


def test_pull(client):
    assert client.pull("scripted").status == "success"
    assert [part.status for part in client.pull("scripted", stream=True)][-1] == "success"


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda c: c.chat("gone", messages=say("x")), 404),
        (lambda c: list(c.chat("gone", messages=say("x"), stream=True)), 404),
        (lambda c: c.embed("scripted", "x"), 400),
        (lambda c: c.embeddings("scripted", "x"), 400),
        (lambda c: c.delete("scripted"), 403),
        (lambda c: c.copy("scripted", "x"), 403),
        (lambda c: c.push("scripted"), 403),
        (lambda c: c.pull("gone"), 403),
        (lambda c: c.create("x", from_="scripted"), 403),
        (lambda c: c.show("gone"), 404),
        (lambda c: c.chat("scripted", messages=say("x" * 600)), 400),
        (lambda c: c.chat("scripted", messages=say("x"), options={"mirostat": 1}), 400),
        (lambda c: c.generate("scripted", "x", images=[b"x"]), 400),
    ],
)
def test_errors_are_the_clients(client, ask, status):
    with pytest.raises(ollama.ResponseError) as caught:
        ask(client)
    assert caught.value.status_code == status
    assert isinstance(caught.value.error, str)


def test_an_error_in_the_stream_is_raised(client):
    stream = client.chat("scripted", messages=[{"role": "user", "content": "slow-loop:x"}], stream=True)
    next(stream)
    with pytest.raises(ollama.ResponseError):
        client.chat("scripted", messages=[{"role": "user", "content": "crash"}])
    with pytest.raises(ollama.ResponseError, match="engine"):
        list(stream)


@pytest.fixture(scope="module")
def managed(tmp_path_factory):
    """A client of a server whose models it may change, and the hub that they come from."""
    with pytest.MonkeyPatch.context() as patch, tiny_hub() as hub:
        place = tmp_path_factory.mktemp("place")
        use_hub(fill(hub), place / "hub", patch)
        (place / "models").mkdir()
        (place / "scripted.gguf").write_bytes(tiny_gguf())
        patch.setenv("SCRIPTED_MODELS_DIR", str(place / "models"))
        with Server(1) as server:
            client = ollama.Client(host=server.wait_ready().url)
            yield client
            client._client.close()


def test_pull_copy_chat_and_delete(managed):
    *parts, last = managed.pull("org/m", stream=True)
    assert (parts[0].status, last.status) == ("pulling manifest", "success")
    assert any(part.completed == part.total and part.digest.startswith("sha256:") for part in parts if part.total)
    assert managed.pull("hf.co/org/m:Q8_0").status == "success"
    assert managed.copy("org/m", "mine").status == "success"
    assert {model.model for model in managed.list().models} == {
        "scripted:latest", "org/m:latest", "hf.co/org/m:Q8_0", "mine:latest",
    }  # fmt: skip
    assert managed.delete("org/m").status == "success"
    assert managed.chat("mine", messages=say("copied")).message.content == "copied"
    for name in ("mine", "hf.co/org/m:Q8_0"):
        assert managed.delete(name).status == "success"
    assert [model.model for model in managed.list().models] == ["scripted:latest"]


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda c: c.pull("org/none"), 404),
        (lambda c: list(c.pull("org/none", stream=True)), 404),
        (lambda c: c.pull("../x"), 400),
        (lambda c: c.pull("llama3.2"), 400),
        (lambda c: c.delete("gone"), 404),
        (lambda c: c.delete("scripted"), 403),
        (lambda c: c.copy("scripted", "x"), 403),
        (lambda c: c.copy("gone", "x"), 404),
    ],
)
def test_changes_that_are_refused_are_the_clients_errors(managed, ask, status):
    with pytest.raises(ollama.ResponseError) as caught:
        ask(managed)
    assert caught.value.status_code == status
