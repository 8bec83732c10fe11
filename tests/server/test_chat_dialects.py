"""Fields of llama.cpp and vLLM on chat and completions: each is honoured, or refused by name."""

from __future__ import annotations

import pytest
from conftest import in_process
from tagged_format import write_tagged
from test_openai_routes import chat, complete, events

import caudal.server.conversation
from caudal.tools.formats import format_of

THINKING = "{{ messages }} enable_thinking <think></think>"
SAID = "say:<think>hm</think>so"


@pytest.fixture
def asked(http):
    """The parameters that the engine gets."""
    seen = []
    add = http.engine.add_request
    http.engine.add_request = lambda request: (seen.append(request.params), add(request))
    return seen


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    ("fields", "penalties"),
    [
        ({"repeat_penalty": 1.2}, (1.2, 0.0, 0.0)),
        ({"repeat_penalty": 1.2, "repetition_penalty": 1.3}, (1.3, 0.0, 0.0)),
        ({"repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 0.5}, (1.2, 0.5, 0.0)),
        ({"repeat_penalty": 1.2, "repeat_last_n": 0, "frequency_penalty": 0.5}, (1.0, 0.0, 0.0)),
        ({"repeat_last_n": 64}, (1.0, 0.0, 0.0)),
    ],
)
async def test_penalties_under_llama_cpps_names(http, asked, ask, fields, penalties):
    assert (await ask(http, "say:x", **fields)).status_code == 200
    (params,) = asked
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == penalties


async def told(http, **fields):
    """The message of an answer, whole; that of its stream says the same."""
    message = (await chat(http, SAID, **fields)).json()["choices"][0]["message"]
    deltas = [event["choices"][0]["delta"] for event in events(await chat(http, SAID, stream=True, **fields))]
    for name in ("content", "reasoning_content", "reasoning"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
    return message


@pytest.mark.parametrize("name", [None, "auto", "deepseek"])
async def test_reasoning_is_told_apart(http, monkeypatch, name):
    monkeypatch.setattr(caudal.server.conversation, "format_of", lambda _: format_of(THINKING))
    message = await told(http, reasoning_format=name)
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("so", "hm", "hm")


async def test_content_keeps_the_reasoning_that_is_not_to_be_told_apart(http, monkeypatch):
    monkeypatch.setattr(caudal.server.conversation, "format_of", lambda _: format_of(THINKING))
    message = await told(http, reasoning_format="none")
    assert message["content"] == "<think>hm</think>so"
    assert "reasoning_content" not in message


async def test_reasoning_that_is_not_wanted_is_left_out_and_counted(monkeypatch):
    write_tagged(monkeypatch)
    async with in_process() as http:
        message = await told(http, include_reasoning=False)
        assert message["content"] == "so"
        assert not {"reasoning_content", "reasoning"} & set(message)
        counts = [(await chat(http, SAID, include_reasoning=value)).json()["usage"] for value in (True, False)]
    assert counts[0]["completion_tokens"] == counts[1]["completion_tokens"]
    assert all(count["completion_tokens_details"]["reasoning_tokens"] > 0 for count in counts)
