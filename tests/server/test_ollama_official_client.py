"""The official ollama client over real sockets."""

from __future__ import annotations

import pytest
from conftest import make_config, real_server
from scripted_engine import ScriptedEngine

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
