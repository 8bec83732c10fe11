"""`caudal serve` with SmolLM2, in its own processes, spoken to by the official client."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest
from real_models import real_model

pytest.importorskip("caudal._native", reason="the native module is not built")

SRC = Path(__file__).parents[2] / "src"
START = "from caudal.cli.main import main; main()"


@pytest.fixture(scope="module")
def server():
    command = [sys.executable, "-c", START, "serve", str(real_model("smollm2")), "--port", "0"]
    arguments = ["--served-model-name", "smollm2", "--max-model-len", "2048"]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        found = next((m for line in process.stderr if (m := re.search(r"ready on (\S+)", line))), None)
        assert found is not None, "the server ended before it was ready"
        yield found[1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.stderr.close()


@pytest.fixture
def client(server):
    with openai.OpenAI(
        base_url=f"{server[0]}/v1", api_key="any", _strict_response_validation=True, max_retries=0, timeout=60
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


def test_prompts_are_scored(server):
    body = {"model": "smollm2", "prompt": ["The capital of France is Paris", "one two"], "max_tokens": 0}
    answer = httpx.post(f"{server[0]}/v1/completions", json={**body, "echo": True, "logprobs": 1}, timeout=60).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "The capital of France is Paris"
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][-1] > -3
    assert logprobs["top_logprobs"][-1] == {" Paris": logprobs["token_logprobs"][-1]}


def test_concurrent_streams_equal_lone_ones(server, client):
    prompts = [f"Number {i} is a" for i in range(12)]
    fields = {"model": "smollm2", "max_tokens": 12, "temperature": 0.8, "seed": 5}

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key="any", timeout=60) as many:

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


def test_the_engine_comes_back_after_kill(server, client):
    url, pid = server
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("the kernel does not list a process's children")
    fields = {"model": "smollm2", "messages": question("x"), "max_tokens": 1900, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(**fields, stream=True)
    next(stream)
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(openai.APIError, match="died"):
        list(stream)
    assert time.monotonic() - began < 1
    while httpx.get(f"{url}/health").status_code != 200:
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    assert client.completions.create(model="smollm2", prompt="x", max_tokens=2).choices[0].text
