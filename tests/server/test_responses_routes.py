from __future__ import annotations

import asyncio

import pytest
from conftest import in_process
from drawn_pieces import sse_events
from tagged_format import CallingTokenizer, write_tagged

from caudal.server.settings import ServerSettings

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def calling(monkeypatch):
    """A server whose model thinks, calls tools, and whose tokenizer remembers what it was given."""
    write_tagged(monkeypatch)
    tokenizer = CallingTokenizer()
    async with in_process(tokenizer=tokenizer, max_model_len=8192) as client:
        client.tokenizer = tokenizer
        yield client


async def ask(http, content="say:hi", **fields):
    return await http.post("/v1/responses", json={"model": "scripted", "input": content, **fields})


def error_of(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def seen(calling, content, **fields):
    """The messages, tools and variables that a template gets."""
    response = await ask(calling, content, **fields)
    assert response.status_code == 200, response.text
    return calling.tokenizer.conversations[-1]


def text_of(response):
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


async def until_ended(http, response_id):
    async with asyncio.timeout(5):
        while True:
            body = (await http.get(f"/v1/responses/{response_id}")).json()
            if body["status"] not in ("queued", "in_progress"):
                return body
            await asyncio.sleep(0.01)


async def until(condition):
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110 - the engine's thread has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "//v1/responses/?x=1"])
async def test_a_response(http, path):
    body = {"model": "scripted", "input": "say:Grüße 🎉", "metadata": {"a": "b"}, "client_metadata": {}, "user": "u"}
    response = (await http.post(path, json=body)).json()
    assert text_of(response) == "Grüße 🎉"
    assert (response["status"], response["object"], response["error"]) == ("completed", "response", None)
    assert (response["metadata"], response["user"], response["truncation"]) == ({"a": "b"}, "u", "disabled")
    num_tokens = len("Grüße 🎉".encode()) + 1
    assert response["usage"]["output_tokens"] == num_tokens
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + num_tokens


async def test_the_events_of_a_stream(http):
    response = await ask(http, "say:añ", stream=True)
    events = sse_events(response.content)
    assert [name for name, _ in events if not name.endswith(".delta")] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(data["delta"] for name, data in events if name.endswith(".delta")) == "añ"


async def test_reasoning_and_a_call(calling):
    thought, text, call = (await ask(calling, "weather?", tools=[TOOL])).json()["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert text["content"][0]["text"] == "ok"
    assert (call["name"], call["arguments"]) == ("get_weather", '{"location": "Málaga"}')
    reasoning = {"summary": "auto", "effort": "low"}
    fields = {"reasoning": reasoning, "include": ["reasoning.encrypted_content"]}
    thought = (await ask(calling, "weather?", tools=[TOOL], **fields)).json()["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "hm"}]
    del thought["summary"], thought["id"]
    messages, _, variables = await seen(
        calling, [{**thought, "summary": []}, {"role": "user", "content": "say:x"}], **fields
    )
    assert messages[0]["reasoning_content"] == "hm"
    assert variables["reasoning_effort"] == "low"


async def test_a_whole_tool_loop(calling):
    messages, tools, _ = await seen(
        calling,
        [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be kind"}]},
            {"role": "user", "content": "a"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "phase": "commentary", "content": "let me see"},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"a": 1}'},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "text"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "say:x"}]},
        ],
        instructions="be brief",
        tools=[
            TOOL,
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}, TOOL]},
            {"type": "web_search", "external_web_access": False},
        ],
    )
    names = [tool["function"]["name"] for tool in tools]
    assert names == ["get_weather", "patch", "spawn", "agents__get_weather"]
    calls = messages[3].pop("tool_calls")
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "let me see", "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
        {"role": "user", "content": "say:x"},
    ]
    assert [call["function"] for call in calls] == [
        {"name": "get_weather", "arguments": '{"a": 1}'},
        {"name": "patch", "arguments": '{"input": "text"}'},
    ]


async def test_the_grammar_of_a_custom_tool_is_told(calling):
    rule = {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}
    _, tools, _ = await seen(
        calling, "say:x", tools=[{"type": "custom", "name": "f", "description": "D", "format": rule}]
    )
    told = "D\n\nThe input must follow this grammar (lark):\nstart: /x+/"
    assert tools[0]["function"]["description"] == told
    assert tools[0]["function"]["parameters"]["required"] == ["input"]


async def test_calls_in_namespaces_keep_their_names(calling):
    space = {"type": "namespace", "name": "agents", "description": "", "tools": [{**TOOL, "name": "spawn"}]}
    call = (await ask(calling, "go", tools=[space])).json()["output"][-1]
    assert (call["name"], call["namespace"]) == ("spawn", "agents")


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("none", None),
        ("auto", ["get_weather", "f"]),
        ("required", ["get_weather", "f"]),
        ({"type": "function", "name": "f"}, ["get_weather", "f"]),
        ({"type": "function", "function": {"name": "f"}}, ["get_weather", "f"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, ["f"]),
    ],
)
async def test_tool_choice(calling, choice, shown):
    _, tools, _ = await seen(calling, "say:x", tools=[TOOL, {"type": "function", "name": "f"}], tool_choice=choice)
    assert (tools and [tool["function"]["name"] for tool in tools]) == shown


async def test_a_conversation_is_continued_from_its_last_response(calling):
    first = (await ask(calling, "say:one", instructions="be brief")).json()
    second = (await ask(calling, "say:two", previous_response_id=first["id"])).json()
    assert second["previous_response_id"] == first["id"]
    messages, _, _ = await seen(calling, "say:three", previous_response_id=second["id"], instructions="be kind")
    assert messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "say:one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "say:two"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "say:three"},
    ]
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    messages, _, _ = await seen(calling, [reference, {"role": "user", "content": "say:x"}])
    assert messages[0] == {"role": "assistant", "content": "one"}


async def test_a_tool_loop_is_continued_from_its_last_response(calling):
    call = (await ask(calling, "weather?", tools=[TOOL], stream=True)).content
    last = sse_events(call)[-1][1]["response"]
    output = {"type": "function_call_output", "call_id": last["output"][-1]["call_id"], "output": "say:sunny"}
    messages, _, _ = await seen(calling, [output], previous_response_id=last["id"])
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_content"] == "hm"
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]


async def test_stored_responses_are_retrieved_and_deleted(http):
    made = (await ask(http)).json()
    path = f"/v1/responses/{made['id']}"
    assert (await http.get(path)).json() == made
    assert (await http.delete(path)).json() == {"id": made["id"], "object": "response", "deleted": True}
    assert error_of(await http.get(path), 404)["code"] == "response_not_found"
    assert error_of(await http.delete(path), 404)["code"] == "response_not_found"
    error = error_of(await ask(http, previous_response_id=made["id"]), 400)
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert made["id"] in error["message"]


async def test_a_response_is_not_kept_if_it_must_not_be(http):
    made = (await ask(http, store=False)).json()
    assert made["store"] is False
    error_of(await http.get(f"/v1/responses/{made['id']}"), 404)


async def test_nobody_sees_the_responses_of_others():
    async with in_process(ServerSettings(api_keys=("mine", "theirs"))) as http:
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("mine", "theirs"))
        made = (await http.post("/v1/responses", json={"model": "scripted", "input": "say:hi"}, headers=mine)).json()
        error_of(await http.get(f"/v1/responses/{made['id']}", headers=theirs), 404)
        assert (await http.get(f"/v1/responses/{made['id']}", headers=mine)).status_code == 200


async def test_input_items(http):
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    made = (await ask(http, items)).json()
    path = f"/v1/responses/{made['id']}/input_items"
    page = (await http.get(f"{path}?order=asc")).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["a", "b", "c"]
    assert [item["content"][0]["type"] for item in page["data"]] == ["input_text", "output_text", "input_text"]
    assert (page["object"], page["has_more"], page["first_id"]) == ("list", False, page["data"][0]["id"])
    first = (await http.get(f"{path}?limit=2")).json()
    assert [item["content"][0]["text"] for item in first["data"]] == ["c", "b"]
    assert first["has_more"] is True
    rest = (await http.get(f"{path}?limit=2&after={first['last_id']}")).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["a"]
    assert error_of(await http.get(f"{path}?order=up"), 400)["param"] == "order"
    error_of(await http.get("/v1/responses/nope/input_items"), 404)


async def test_counting_without_answering(http):
    body = {"model": "scripted", "input": "x" * 1000}
    answer = (await http.post("/v1/responses/input_tokens", json=body)).json()
    assert answer == {
        "object": "response.input_tokens",
        "input_tokens": len("<user>" + "x" * 1000 + "\n<assistant>") + 1,
    }
    assert http.engine.num_prompt == 0


async def test_limits(http):
    made = (await ask(http, "loop:x", max_output_tokens=5)).json()
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert text_of(made) == "xxxxx"
    made = (await ask(http, "loop:x", max_output_tokens=32000)).json()
    assert made["usage"]["total_tokens"] == 512
    events = sse_events((await ask(http, "loop:x", max_output_tokens=5, stream=True)).content)
    assert events[-1][0] == "response.incomplete"


async def test_sampling_fields_reach_the_engine(http):
    requests = []
    add = http.engine.add_request
    http.engine.add_request = lambda request: (requests.append(request), add(request))
    made = (await ask(http, temperature=0, top_p=0.5, include=["message.output_text.logprobs"], top_logprobs=2)).json()
    params = requests[0].params
    assert (params.temperature, params.top_p, params.logprobs) == (0, 0.5, 2)
    assert (made["temperature"], made["top_p"], made["top_logprobs"]) == (0, 0.5, 2)
    logprobs = made["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == ["h", "i", "<|257|>"]
    assert len(logprobs[0]["top_logprobs"]) == 2


async def test_a_prompt_that_does_not_fit(http):
    error = error_of(await ask(http, "x" * 1000), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    response = await ask(http, "x" * 1000, stream=True)
    assert response.status_code == 200
    events = sse_events(response.content)
    assert [name for name, _ in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1][1]["response"]["error"]["code"] == "context_length_exceeded"


async def test_a_failure_in_a_stream():
    async with in_process(ServerSettings(first_byte_wait_s=0.01)) as http:
        task = asyncio.create_task(ask(http, "slow-loop:x", stream=True))
        await until(lambda: http.engine.running)
        assert error_of(await ask(http, "crash"), 500)["type"] == "server_error"
        name, data = sse_events((await task).content)[-1]
    assert name == "response.failed"
    assert data["response"]["error"]["code"] == "server_error"


async def test_a_response_in_the_background(http):
    made = (await ask(http, "slow-say:abc", background=True)).json()
    assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
    path = f"/v1/responses/{made['id']}"
    assert (await http.get(path)).json()["status"] == "in_progress"
    ended = await until_ended(http, made["id"])
    assert (ended["status"], text_of(ended)) == ("completed", "abc")
    assert (await http.post(f"{path}/cancel")).json() == ended


async def test_a_response_in_the_background_is_cancelled(http):
    made = (await ask(http, "slow-loop:x", background=True)).json()
    await until(lambda: http.engine.running)
    cancelled = (await http.post(f"/v1/responses/{made['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    await until(lambda: not http.engine.has_work)
    assert (await http.get(f"/v1/responses/{made['id']}")).json() == cancelled


async def test_a_response_in_the_background_is_deleted(http):
    made = (await ask(http, "slow-loop:x", background=True)).json()
    assert (await http.delete(f"/v1/responses/{made['id']}")).status_code == 200
    await until(lambda: not http.engine.has_work)
    error_of(await http.get(f"/v1/responses/{made['id']}"), 404)


async def test_a_failure_in_the_background(http):
    made = (await ask(http, "crash", background=True)).json()
    ended = await until_ended(http, made["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "server_error")


async def test_the_stream_of_a_response_in_the_background(http):
    events = sse_events((await ask(http, "say:abc", background=True, stream=True)).content)
    names = [name for name, _ in events]
    assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert names[-1] == "response.completed"
    assert text_of(await until_ended(http, events[0][1]["response"]["id"])) == "abc"


async def test_the_background_counts_as_open():
    async with in_process(ServerSettings(max_open_requests=1)) as http:
        made = (await ask(http, "slow-loop:x", background=True)).json()
        assert (await ask(http)).status_code == 429
        await http.post(f"/v1/responses/{made['id']}/cancel")
        assert (await ask(http)).status_code == 200


async def test_only_the_background_is_cancelled(http):
    made = (await ask(http)).json()
    assert error_of(await http.post(f"/v1/responses/{made['id']}/cancel"), 400)["param"] == "response_id"
    error_of(await http.post("/v1/responses/nope/cancel"), 404)


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}


@pytest.mark.parametrize(
    ("changes", "parameter", "named"),
    [
        ({"model": None}, "model", "model"),
        ({"input": None}, "input", "input"),
        ({"input": []}, "input", "input"),
        ({"input": [IMAGE]}, "input", "input_image"),
        ({"input": [{"type": "computer_call"}]}, "input", "computer_call"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input", "robot"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "call_id"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input", "msg_x"),
        ({"conversation": "conv_1"}, "conversation", "conversation"),
        ({"prompt": {"id": "p"}}, "prompt", "prompt"),
        ({"tools": [{"name": "f"}]}, "tools", "type"),
        ({"tools": [{"type": "function", "name": "no good"}]}, "tools", "no good"),
        ({"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar"}}]}, "tools", "grammar"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tool_choice": "perhaps"}, "tool_choice", "perhaps"),
        ({"tool_choice": {"type": "function", "name": "nope"}, "tools": [TOOL]}, "tool_choice", "nope"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice", "web_search_preview"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "allowed_tools"),
        ({"reasoning": {"effort": "heroic"}}, "reasoning", "heroic"),
        ({"truncation": "perhaps"}, "truncation", "perhaps"),
        ({"max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"top_logprobs": 1000}, "top_logprobs", "1000"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"metadata": {"k": "v" * 1000}}, "metadata", "512"),
        ({"background": True, "store": False}, "background", "store"),
    ],
)
async def test_what_is_refused_is_named(http, changes, parameter, named):
    error = error_of(await ask(http, **changes), 400)
    assert error["param"] == parameter
    assert named in error["message"]
