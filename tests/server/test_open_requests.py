"""The gauge of open answers, which tells a leak from a busy moment."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from conftest import real_server
from test_engine_process import make_client
from test_openai_routes import until

pytestmark = pytest.mark.usefixtures("tests_importable")


async def open_requests(http):
    page = (await http.get("/metrics")).text
    return float(re.search(r"^caudal:open_requests (\S+)$", page, re.MULTILINE)[1])


async def test_open_answers_are_counted_until_they_end_or_their_reader_leaves():
    body = {"model": "scripted", "messages": [{"role": "user", "content": "slow-loop:x"}], "stream": True}
    with real_server(lambda: make_client(max_model_len=100_000)) as (url, client):
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            assert await open_requests(http) == 0
            async with http.stream("POST", "/v1/chat/completions", json={**body, "n": 2}) as response:
                await anext(response.aiter_lines())
                assert await open_requests(http) == 2
            await until(lambda: client.num_open == 0)
            async with asyncio.timeout(5):
                while await open_requests(http):
                    pass
