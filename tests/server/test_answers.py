"""Reading answers while clients leave."""

from __future__ import annotations

import asyncio

import pytest

from caudal.server.answers import Answers


@pytest.mark.parametrize("ticks", range(5))
async def test_a_client_that_leaves_as_news_comes_is_noticed(ticks):
    """The task that waits for news is cancelled, at any moment after the news, and must end."""
    answers = Answers(None, [None])
    task = asyncio.create_task(answers.next(timeout_s=1.0))
    for _ in range(3):
        await asyncio.sleep(0)
    answers._news.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
