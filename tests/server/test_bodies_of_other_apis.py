"""No body that is sent to the Messages or the Responses API is a 500."""

from __future__ import annotations

import asyncio
import json

import pytest
from conftest import in_process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_openai_errors import bodies

from caudal.server.anthropic.request_protocol import Block, MessagesBody, ToolDefinition
from caudal.server.responses.request_protocol import InputItem, ResponsesBody
from caudal.server.responses.tools import GivenTool
from caudal.server.settings import ServerSettings

BLOCKS = (
    "text",
    "document",
    "tool_use",
    "tool_result",
    "thinking",
    "search_result",
    "tool_reference",
    "image",
    "tool_addition",
    "tool_removal",
)
ITEMS = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "item_reference")
TOOLS = ("function", "custom", "namespace", "web_search")


def objects(struct, kinds, **required):
    """Objects of an open type: the fields hold anything, the type is one that is known."""
    return st.builds(
        lambda body, kind: {**body, "type": kind} if isinstance(body, dict) else body,
        bodies(struct, required),
        st.sampled_from(kinds),
    )


def with_lists(made, name, inner):
    """Bodies with a list of such objects under a name, or whatever was there."""
    return st.builds(
        lambda body, value: {**body, name: value} if isinstance(body, dict) and value is not None else body,
        made,
        st.none() | st.lists(inner, min_size=1, max_size=3),
    )


turns = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system"]),
    st.lists(objects(Block, BLOCKS, text="say:ñ"), max_size=3),
)
MESSAGES = bodies(
    MessagesBody, {"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": "say:ñ"}]}
)
RESPONSES = bodies(ResponsesBody, {"model": "scripted", "input": "say:ñ"})


@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("/v1/messages", MESSAGES),
        ("/v1/messages", with_lists(MESSAGES, "messages", turns)),
        ("/v1/messages", with_lists(MESSAGES, "tools", objects(ToolDefinition, ("custom", "web_search_1")))),
        ("/v1/messages/count_tokens", MESSAGES),
        ("/v1/responses", RESPONSES),
        ("/v1/responses", with_lists(RESPONSES, "input", objects(InputItem, ITEMS, content="say:ñ"))),
        ("/v1/responses", with_lists(RESPONSES, "tools", objects(GivenTool, TOOLS, name="f"))),
        ("/v1/responses/input_tokens", RESPONSES),
    ],
)
async def test_no_body_is_a_500(path, made):
    async with in_process(ServerSettings(max_open_requests=8), max_model_len=64) as http:
        loop = asyncio.get_running_loop()

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(body=made)
        def check(body):
            data = json.dumps(body).encode("utf-8", "surrogatepass")
            response = asyncio.run_coroutine_threadsafe(http.post(path, content=data), loop).result(10)
            assert response.status_code in (200, 400, 404), (body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"]

        await asyncio.to_thread(check)
        async with asyncio.timeout(5):  # what was asked for in the background may still run
            while http.engine_client.num_open:  # noqa: ASYNC110 - the engine's thread has no event for it
                await asyncio.sleep(0.01)
