"""Every API that has a place for it tells how many tokens the reasoning took, and they tell the same."""

from __future__ import annotations

import pytest
from conftest import in_process
from drawn_pieces import pieces
from hypothesis import given
from hypothesis import strategies as st
from tagged_format import write_tagged
from test_openai_routes import chat, complete, events

from caudal.server.answer_count import AnswerCount
from caudal.server.answer_reader import Piece
from caudal.server.openai.usage import UsageCount
from caudal.tools.parts import ReasoningPart, TextPart

SAID = "slow-say:<think>h</think>so"  # slow: a piece of several tokens may hold the end of the reasoning
TURNS = [{"role": "user", "content": SAID}]


@pytest.fixture
async def thinking(monkeypatch):
    write_tagged(monkeypatch)
    async with in_process() as client:
        yield client


async def test_all_apis_tell_the_same(thinking):
    details = (await chat(thinking, SAID)).json()["usage"]["completion_tokens_details"]
    body = {"model": "scripted", "max_tokens": 99, "messages": TURNS}
    message = (await thinking.post("/v1/messages", json=body)).json()
    response = (await thinking.post("/v1/responses", json={"model": "scripted", "input": SAID})).json()
    assert details["reasoning_tokens"] == response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert details["reasoning_tokens"] == next(iter(message["usage"]["output_tokens_details"].values()))


async def test_streams_and_several_answers(thinking):
    one = (await chat(thinking, SAID)).json()["usage"]["completion_tokens_details"]["reasoning_tokens"]
    chunks = events(await chat(thinking, SAID, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": one}
    three = (await chat(thinking, SAID, n=3)).json()["usage"]["completion_tokens_details"]
    assert three == {"reasoning_tokens": 3 * one}


async def test_an_answer_without_reasoning_has_none_of_these_tokens(thinking):
    for response in (await chat(thinking, "say:so"), await complete(thinking, SAID)):
        assert response.json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@given(st.lists(pieces(), min_size=6, max_size=6))
def test_the_counts_of_answers_add_up(answers):
    counts = UsageCount([3, 5], 3)
    alone = [AnswerCount(0) for _ in answers]
    for index, answer in enumerate(answers):
        for piece in answer:
            counts.add(index, piece)
            alone[index].add(piece)
    usage = counts.usage()
    assert (usage.prompt_tokens, usage.total_tokens) == (8, 8 + usage.completion_tokens)
    assert usage.completion_tokens == sum(count.num_generated for count in alone)
    assert usage.completion_tokens_details.reasoning_tokens == sum(count.num_reasoning for count in alone)
    assert usage.prompt_tokens_details.cached_tokens == alone[0].num_cached + alone[3].num_cached


def test_answers_that_come_mixed_are_counted_apart():
    """A piece without parts counts as what the answer was in, of which the other answer knows nothing."""
    counts = UsageCount([1], 2)
    counts.add(0, Piece(parts=[ReasoningPart("a")], num_tokens=1))
    counts.add(1, Piece(parts=[TextPart("a")], num_tokens=1))
    counts.add(0, Piece(num_tokens=1))
    counts.add(1, Piece(num_tokens=1))
    assert counts.usage().completion_tokens_details.reasoning_tokens == 2
