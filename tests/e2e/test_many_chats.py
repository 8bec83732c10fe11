"""64 people chat at once with `caudal serve` and SmolLM2: everyone gets the answer they would get alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import openai
import pytest
from real_models import real_model

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

NUM_CHATS = 64
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2  # layers, k and v, heads, head size, float16
TOPICS = ("rivers", "the sea", "bread", "old maps", "trains", "glass", "bees", "chess")
TURNS = (
    ("user", "Tell me about {topic}. I am visitor {number}."),
    ("assistant", "Gladly, visitor {number}. " + "There is much to say about {topic}, and people disagree. " * 6),
    ("user", "Go on, and give me an example. " + "I would like it short, with a name and a year. " * 4),
    ("assistant", "One example of {topic} is well known. " + "It took place long ago, near a town by a lake. " * 22),
    ("user", "¿Y qué más? Answer in a few words, please."),
)


def chat(number):
    """The fields of one request: a conversation of about 500 tokens, no two alike."""
    topic = TOPICS[number % len(TOPICS)]
    return {
        "model": "smollm2",
        "messages": [{"role": role, "content": text.format(topic=topic, number=number)} for role, text in TURNS],
        "seed": number,
        "max_tokens": 80 + number % 17,
        "extra_body": {"ignore_eos": number % 8 != 0},
    }


async def stream_answer(client, fields, salt):
    """Return text, finish reason and usage of one streamed chat."""
    text, reason, usage = "", None, None
    extra = {**fields["extra_body"], "cache_salt": salt}
    async for chunk in await client.chat.completions.create(
        **{**fields, "extra_body": extra}, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    return text, reason, (usage.prompt_tokens, usage.completion_tokens)


async def watch(url, samples):
    """Collect the engine's gauges until cancelled."""
    async with httpx.AsyncClient() as client:
        while True:
            page = (await client.get(f"{url}/metrics")).text
            samples.append(
                {name: float(value) for name, value in re.findall(r"^(\w+:\w+)\{.*\} (\S+)$", page, re.MULTILINE)}
            )
            await asyncio.sleep(0.1)


async def everyone_at_once(url):
    """Return the answers of all chats, and the gauges meanwhile."""
    samples = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", timeout=120, max_retries=0) as client:
        watcher = asyncio.create_task(watch(url, samples))
        answers = await asyncio.gather(*(stream_answer(client, chat(i), "together") for i in range(NUM_CHATS)))
        watcher.cancel()
    return answers, samples


async def one_by_one(url):
    """Return the answers of all chats, each computed with nothing else in the engine and nothing cached."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", timeout=120, max_retries=0) as client:
        return [await stream_answer(client, chat(i), f"alone-{i}") for i in range(NUM_CHATS)]


def peak_rss_bytes(pid):
    """The most memory that a process has ever held."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def test_64_chats(smollm2_server):
    answers, samples = asyncio.run(everyone_at_once(smollm2_server.url))
    peak = peak_rss_bytes(smollm2_server.engine_pid())

    assert {reason for _, reason, _ in answers} <= {"stop", "length"}
    assert all(text and tokens >= 1 for text, _, (_, tokens) in answers)
    # Some may have ended by themselves before the last prompt was read.
    full = [s for s in samples if s["vllm:num_requests_running"] >= NUM_CHATS * 7 / 8]
    assert full

    used = max(s["caudal:kv_cache_used_tokens"] for s in samples)
    waste = [1 - s["caudal:kv_cache_used_tokens"] / s["caudal:kv_cache_allocated_tokens"] for s in full]
    weights = real_model("smollm2").stat().st_size
    bar = 1.15 * (weights + used * KV_BYTES_PER_TOKEN) + 150e6
    assert sum(waste) / len(waste) < 0.04
    assert peak <= bar

    assert asyncio.run(one_by_one(smollm2_server.url)) == answers
