"""`caudal serve` with SmolLM2, in its own processes, spoken to by the official client."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx
import openai
import pytest

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)


@pytest.fixture
def client(smollm2_server):
    with openai.OpenAI(
        base_url=f"{smollm2_server.url}/v1", api_key="any", _strict_response_validation=True, max_retries=0, timeout=60
    ) as client:
        yield client


def question(text):
    return [{"role": "user", "content": text}]


def test_completion_knows_the_capital(client):
    answer = client.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=3, temperature=0)
    assert answer.choices[0].text.startswith(" Paris")


def test_stream_equals_whole_and_the_prefix_is_cached(client):
    fields = {
        "model": "smollm2",
        "messages": question("Tell me about rivers. " * 20),
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 64


def test_prompts_are_scored(smollm2_server):
    body = {"model": "smollm2", "prompt": ["The capital of France is Paris", "one two"], "max_tokens": 0}
    answer = httpx.post(
        f"{smollm2_server.url}/v1/completions", json={**body, "echo": True, "logprobs": 1}, timeout=60
    ).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "The capital of France is Paris"
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][-1] > -3
    assert logprobs["top_logprobs"][-1] == {" Paris": logprobs["token_logprobs"][-1]}


def test_concurrent_streams_equal_lone_ones(smollm2_server, client):
    prompts = [f"Number {i} is a" for i in range(12)]
    fields = {"model": "smollm2", "max_tokens": 12, "temperature": 0.8, "seed": 5}

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{smollm2_server.url}/v1", api_key="any", timeout=60) as many:

            async def one(prompt):
                stream = await many.completions.create(prompt=prompt, stream=True, **fields)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(one, prompts))

    alone = [client.completions.create(prompt=prompt, **fields).choices[0].text for prompt in prompts]
    assert asyncio.run(together()) == alone


def test_the_context_is_a_limit(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens") as refused:
        client.chat.completions.create(model="smollm2", messages=question("river " * 3000))
    assert refused.value.code == "context_length_exceeded"


def test_the_engine_comes_back_after_kill(smollm2_server, client):
    url, engine_pid = smollm2_server.url, smollm2_server.engine_pid()
    fields = {"model": "smollm2", "messages": question("x"), "max_tokens": 1900, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(**fields, stream=True)
    next(stream)
    os.kill(engine_pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(openai.APIError, match="died"):
        list(stream)
    assert time.monotonic() - began < 1
    while httpx.get(f"{url}/health").status_code != 200:
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    assert client.completions.create(model="smollm2", prompt="x", max_tokens=2).choices[0].text
