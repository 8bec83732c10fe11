"""The official openai client, validating every answer, over real sockets and a real engine process."""

from __future__ import annotations

import openai
import pytest
from conftest import make_config, real_server

from caudal.engine.engine_client import EngineClient


@pytest.fixture(scope="module")
def base_url(tests_importable):
    with real_server(lambda: EngineClient(make_config(), engine_factory="scripted_engine:load")) as (url, _):
        yield url


@pytest.fixture
def client(base_url):
    with openai.OpenAI(
        base_url=f"{base_url}/v1", api_key="any", _strict_response_validation=True, max_retries=0, timeout=20
    ) as client:
        yield client


def say(text):
    return [{"role": "user", "content": f"say:{text}"}]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["scripted", "org/other:tag"]
    assert client.models.retrieve("org/other:tag").owned_by == "caudal"


def test_chat(client):
    answer = client.chat.completions.create(model="scripted", messages=say("añ 🎉"), n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in answer.choices] == ["añ 🎉"] * 2
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert bytes(b for entry in answer.choices[0].logprobs.content for b in entry.bytes[:1]).startswith(
        "añ 🎉".encode()
    )


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="scripted", messages=say("añ 🎉"), stream=True, stream_options={"include_usage": True}, logprobs=True
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "añ 🎉"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == len("añ 🎉".encode()) + 1


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model="scripted", messages=say("hello"), seed=1) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "hello"


def test_completions(client):
    answer = client.completions.create(model="scripted", prompt=["say:a", "say:bc"], logprobs=1, max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["a", "bc"]
    assert answer.choices[1].logprobs.text_offset == [0, 1, 2]


def test_completions_stream(client):
    # OpenAI's own streams have finish_reason null before the end, and the client's type for it has no null.
    with openai.OpenAI(base_url=client.base_url, api_key="any", max_retries=0, timeout=20) as lenient:
        stream = lenient.completions.create(
            model="scripted", prompt=list(b"slow-say:bc"), stream=True, echo=True, stop="c"
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "slow-say:bcb"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "stop"]


def test_errors_are_the_clients_classes(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=say("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="scripted", prompt="x" * 1000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="scripted", messages=say("x"), temperature=-1)
    assert wrong.value.param == "temperature"


def test_an_error_in_the_stream_is_raised(client):
    stream = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "slow-loop:x"}], stream=True
    )
    next(stream)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "crash"}])
    with pytest.raises(openai.APIError, match="engine"):
        list(stream)
