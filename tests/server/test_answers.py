"""Several answers read as one stream, and a reader that is cancelled at any moment."""

from __future__ import annotations

import asyncio

import pytest

from caudal.server.answer_reader import Piece
from caudal.server.answers import Answers


@pytest.mark.parametrize("timeout_s", [None, 60.0])
@pytest.mark.parametrize("num_turns", range(6))
async def test_a_cancelled_reader_stops_though_news_come_at_the_same_moment(num_turns, timeout_s):
    answers = Answers(None, [])
    answers._num_running = 1  # an answer whose news come by hand

    async def read_on():
        while await answers.next(timeout_s) is not None:
            pass

    reader = asyncio.create_task(read_on())
    for _ in range(5):
        await asyncio.sleep(0)
    answers._pieces.append((0, Piece(text="x")))
    answers._news.set()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    reader.cancel()
    done, _ = await asyncio.wait((reader,), timeout=2)
    answers._num_running = 0
    answers._news.set()
    await asyncio.gather(reader, return_exceptions=True)
    assert done, "the cancellation was swallowed"
    assert reader.cancelled()


async def test_silence_ends_with_nothing():
    answers = Answers(None, [])
    answers._num_running = 1
    assert await answers.next(0.01) == []
    assert await answers.next(-1) == []
