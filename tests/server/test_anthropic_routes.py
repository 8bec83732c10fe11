from __future__ import annotations

import asyncio

import pytest
from conftest import in_process
from drawn_pieces import sse_events
from tagged_format import CallingTokenizer, write_tagged

from caudal.server.settings import ServerSettings

TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}}}


@pytest.fixture
async def calling(monkeypatch):
    """A server whose model thinks, calls tools, and whose tokenizer remembers what it was given."""
    write_tagged(monkeypatch)
    tokenizer = CallingTokenizer()
    async with in_process(tokenizer=tokenizer, max_model_len=4096) as client:
        client.tokenizer = tokenizer
        yield client


async def ask(http, content="say:hi", **fields):
    body = {"model": "scripted", "max_tokens": 400, "messages": [{"role": "user", "content": content}], **fields}
    return await http.post("/v1/messages", json=body)


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    assert body["error"]["type"] == kind
    return body["error"]["message"]


async def seen(calling, **fields):
    """The messages, tools and variables that a template gets."""
    response = await calling.post("/v1/messages", json={"model": "scripted", "max_tokens": 9, **fields})
    assert response.status_code == 200, response.text
    return calling.tokenizer.conversations[-1]


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages?beta=true", "//v1//messages/?x=%ff"])
async def test_a_message(http, path):
    body = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "say:Grüße 🎉"}]}
    response = await http.post(path, json=body, headers={"anthropic-version": "2030-01-01", "anthropic-beta": "x,y"})
    message = response.json()
    assert message["content"] == [{"type": "text", "text": "Grüße 🎉", "citations": None}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "scripted")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] == len("Grüße 🎉".encode()) + 1


async def test_the_events_of_a_stream(http):
    response = await ask(http, "say:añ", stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    names = [name for name, _ in sse_events(response.content)]
    assert names[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_cached_tokens_are_in_the_first_event(http):
    await ask(http, "x" * 100)
    events = sse_events((await ask(http, "x" * 100, stream=True)).content)
    usage = events[0][1]["message"]["usage"]
    assert usage["cache_read_input_tokens"] > 0
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert total == len("<user>" + "x" * 100 + "\n<assistant>") + 1


async def test_thinking_and_a_call(calling):
    message = (await ask(calling, "weather?", tools=[TOOL])).json()
    thinking, text, call = message["content"]
    assert (thinking["thinking"], text["text"]) == ("hm", "ok")
    assert (call["name"], call["input"]) == ("get_weather", {"location": "Málaga"})
    assert message["stop_reason"] == "tool_use"
    stream = sse_events((await ask(calling, "weather?", tools=[TOOL], stream=True)).content)
    deltas = [data["delta"]["type"] for name, data in stream if name == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]


async def test_omitted_thinking_comes_back_in_its_signature(calling):
    thinking = {"type": "adaptive", "display": "omitted"}
    block = (await ask(calling, "weather?", tools=[TOOL], thinking=thinking)).json()["content"][0]
    assert block["thinking"] == ""
    messages, _, variables = await seen(
        calling,
        thinking=thinking,
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [block, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ],
    )
    assert messages[1] == {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    assert variables["enable_thinking"] is True


async def test_a_whole_tool_loop(calling):
    messages, tools, _ = await seen(
        calling,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "be kind"},
        ],
        tools=[TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "system", "content": "mind the date"},
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": "zzz"},
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"location": "x"}},
                    {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "say:done"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no such"}, {"type": "text", "text": "place"}],
                    },
                ],
            },
        ],
    )
    assert [tool["function"]["name"] for tool in tools] == ["get_weather"]
    calls = messages[3].pop("tool_calls")
    assert messages == [
        {"role": "system", "content": "be brief\nbe kind"},
        {"role": "user", "content": "a\nb"},
        {"role": "system", "content": "mind the date"},
        {"role": "assistant", "content": "let me see", "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no such\nplace"},
        {"role": "user", "content": "say:done"},
    ]
    assert [call["id"] for call in calls] == ["t1", "t2"]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": {"location": "x"}}


async def test_deferred_tools_are_shown_once_they_are_referred_to(calling):
    tools = [{**TOOL, "name": "search"}, {**TOOL, "name": "late", "defer_loading": True}]
    start = {"role": "user", "content": "say:x"}
    _, shown, _ = await seen(calling, tools=tools, messages=[start])
    assert [tool["function"]["name"] for tool in shown] == ["search"]
    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "late"}]
    loop = [
        start,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": found}]},
    ]
    _, shown, _ = await seen(calling, tools=tools, messages=loop)
    assert [tool["function"]["name"] for tool in shown] == ["search", "late"]


async def test_tools_are_added_and_removed_on_the_way(calling):
    tools = [{**TOOL, "name": "first"}, {**TOOL, "name": "late", "defer_loading": True}]
    definition = {**TOOL, "name": "inline"}
    turns = [
        {"role": "user", "content": "say:x"},
        {"role": "system", "content": [
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}},
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}},
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "first"}},
        ]},
        {"role": "user", "content": "say:x"},
    ]  # fmt: skip
    messages, shown, _ = await seen(calling, tools=tools, messages=turns)
    assert [tool["function"]["name"] for tool in shown] == ["late", "inline"]
    told = ["The tool late can be called now.", "The tool inline can be called now.", "The tool first is gone."]
    assert messages[1] == {"role": "system", "content": "\n".join(told)}


async def test_documents_and_search_results_of_text_are_read(calling):
    content = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}]}},
        {"type": "search_result", "source": "url", "title": "R", "content": [{"type": "text", "text": "F"}]},
        {"type": "text", "text": "say:x"},
    ]
    messages, _, _ = await seen(calling, messages=[{"role": "user", "content": content}])
    assert messages[0]["content"] == "T\nD\nE\nR\nurl\nF\nsay:x"


@pytest.mark.parametrize(
    ("thinking", "enabled"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive"}, True),
        ({"type": "between_tools"}, True),
        ({"type": "disabled"}, False),
    ],
)
async def test_thinking_is_a_variable_of_the_template(calling, thinking, enabled):
    start = [{"role": "user", "content": "say:x"}]
    _, _, variables = await seen(calling, messages=start, thinking=thinking, output_config={"effort": "max"})
    assert (variables["enable_thinking"], variables["reasoning_effort"]) == (enabled, "high")
    _, _, variables = await seen(calling, messages=start)
    assert "enable_thinking" not in variables


async def test_a_begun_answer_is_continued(calling):
    turns = [{"role": "user", "content": "say:x"}, {"role": "assistant", "content": "The best answer is ("}]
    _, _, variables = await seen(calling, messages=turns)
    assert variables["continue_final_message"] is True
    assert variables["add_generation_prompt"] is False


@pytest.mark.parametrize("choice", [{"type": "none"}, {"type": "auto"}, {"type": "any"}, {"type": "tool"}])
async def test_tool_choice(calling, choice):
    choice = {**choice, "name": "get_weather"} if choice["type"] == "tool" else choice
    messages = [{"role": "user", "content": "say:x"}]
    _, tools, _ = await seen(calling, messages=messages, tools=[TOOL], tool_choice=choice)
    assert (tools is None) == (choice["type"] == "none")


async def test_stop_sequences_and_limits(http):
    message = (await ask(http, "loop:abcSTOP", stop_sequences=["STOP"])).json()
    assert message["content"][0]["text"] == "abc"
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "STOP")
    message = (await ask(http, "loop:x", max_tokens=5)).json()
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 5)
    message = (await ask(http, "loop:x", max_tokens=32000)).json()
    assert message["stop_reason"] == "model_context_window_exceeded"
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 512


async def test_sampling_fields_reach_the_engine(http):
    requests = []
    add = http.engine.add_request
    http.engine.add_request = lambda request: (requests.append(request), add(request))
    await ask(http, temperature=0, top_p=0.5, top_k=3, stop_sequences=["x"])
    params = requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (0, 0.5, 3, ("x",))


async def test_a_prompt_that_does_not_fit_says_how_long_it_is(http):
    response = await ask(http, "x" * 1000)
    num_tokens = len("<user>" + "x" * 1000 + "\n<assistant>") + 1
    message = error_of(response, 400, "invalid_request_error")
    assert message == f"prompt is too long: {num_tokens} tokens > 511 maximum"
    error_of(await ask(http, "x" * 1000, stream=True), 400, "invalid_request_error")


async def test_count_tokens(http):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x" * 1000}]}
    answer = (await http.post("/v1/messages/count_tokens", json=body)).json()
    assert answer == {"input_tokens": len("<user>" + "x" * 1000 + "\n<assistant>") + 1}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "image"),
        ({"messages": [{"role": "user", "content": [PDF]}]}, "base64"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, "tool_use"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "hologram"),
        ({"tools": [{"name": "no good"}]}, "no good"),
        ({"tools": [TOOL, TOOL]}, "same name"),
        ({"messages": [{"role": "system", "content": [{"type": "tool_removal", "tool": {}}]}]}, "tool_reference"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": 5}}],
                    }
                ]
            },
            "definition",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "nope"}, "tools": [TOOL]}, "nope"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "name"),
        ({"tool_choice": {"type": "perhaps"}, "tools": [TOOL]}, "perhaps"),
        ({"thinking": {"type": "deep"}}, "deep"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "loud"),
        ({"output_config": {"effort": "heroic"}}, "heroic"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop"),
        ({"model": None}, "model"),
    ],
)
async def test_what_is_refused_is_named(http, changes, named):
    assert named in error_of(await ask(http, **changes), 400, "invalid_request_error")


async def test_errors_have_the_types_of_the_api(http):
    error_of(await ask(http, model="gpt-9"), 404, "not_found_error")
    error_of(await http.post("/v1/messages", content=b"{"), 400, "invalid_request_error")
    async with in_process(ServerSettings(max_body_bytes=50)) as small:
        error_of(await ask(small), 413, "request_too_large")
    error_of(await ask(http, "crash"), 500, "api_error")


async def test_a_full_server_asks_to_try_again():
    async with in_process(ServerSettings(max_open_requests=1)) as full:
        task = asyncio.create_task(ask(full, "slow-loop:x", max_tokens=50))
        async with asyncio.timeout(3):
            while not full.engine.running:  # noqa: ASYNC110 - the engine's thread has no event for it
                await asyncio.sleep(0.01)
        response = await ask(full)
        await task
    assert response.headers["retry-after"]
    error_of(response, 429, "rate_limit_error")


async def test_silence_is_filled_with_ping_events():
    settings = ServerSettings(ping_interval_s=0.05, first_byte_wait_s=0.01)
    async with in_process(settings) as http:
        names = [name for name, _ in sse_events((await ask(http, "hang say:x", stream=True)).content)]
    assert names[0] == "ping"
    assert names[-1] == "message_stop"


async def test_models_in_either_shape(http):
    version = {"anthropic-version": "2023-06-01"}
    page = (await http.get("/v1/models?limit=1000", headers=version)).json()
    assert [info["id"] for info in page["data"]] == ["scripted", "org/other:tag"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "scripted", "org/other:tag")
    assert page["data"][0]["max_input_tokens"] == 512
    assert (page["data"][0]["type"], page["data"][0]["created_at"]) == ("model", "1970-01-01T00:00:01Z")
    one = (await http.get("/v1/models/org/other:tag", headers=version)).json()
    assert one["display_name"] == "org/other:tag"
    assert (await http.get("/v1/models")).json()["object"] == "list"
    error_of(await http.get("/v1/models/nope", headers=version), 404, "not_found_error")
    error_of(await http.get("/v1/models?limit=0", headers=version), 400, "invalid_request_error")


async def test_pages_of_models(http):
    version = {"anthropic-version": "2023-06-01"}
    first = (await http.get("/v1/models?limit=1", headers=version)).json()
    assert first["has_more"] is True
    second = (await http.get(f"/v1/models?limit=1&after_id={first['last_id']}", headers=version)).json()
    assert ([info["id"] for info in second["data"]], second["has_more"]) == (["org/other:tag"], False)
    back = (await http.get("/v1/models?limit=1&before_id=org/other:tag", headers=version)).json()
    assert ([info["id"] for info in back["data"]], back["has_more"]) == (["scripted"], False)
