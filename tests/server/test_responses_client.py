"""The official openai client with the Responses API, validating every answer, over real sockets."""

from __future__ import annotations

import openai
import pydantic
import pytest
from calling_server import calling_server
from openai.types.responses import ResponseStreamEvent

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    "strict": False,
}


@pytest.fixture(scope="module")
def base_url():
    with calling_server() as url:
        yield url


@pytest.fixture
def client(base_url):
    with openai.OpenAI(
        base_url=f"{base_url}/v1", api_key="any", _strict_response_validation=True, max_retries=0, timeout=20
    ) as client:
        yield client


def ask(client, content, **fields):
    return client.responses.create(model="scripted", input=content, **fields)


def test_a_response(client):
    response = ask(client, "say:añ 🎉", metadata={"a": "b"}, reasoning={"effort": "low", "summary": "auto"})
    assert response.output_text == "añ 🎉"
    assert response._request_id.startswith("req_")
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_tool_loop_by_id(client):
    response = ask(client, "weather?", tools=[TOOL])
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    call = response.output[-1]
    assert call.arguments == '{"location": "Málaga"}'
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "say:sunny"}
    assert ask(client, [output], previous_response_id=response.id, tools=[TOOL]).output_text == "sunny"


def test_a_tool_loop_by_sending_all(client):
    response = ask(client, "weather?", tools=[TOOL], store=False, include=["reasoning.encrypted_content"])
    call = response.output[-1]
    items = [{"role": "user", "content": "weather?"}, *response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "say:sunny"})
    assert ask(client, items, tools=[TOOL], store=False).output_text == "sunny"


TOOLS = {
    "function": TOOL,
    "custom": {"type": "custom", "name": "patch", "description": "Patches."},
    "namespace": {"type": "namespace", "name": "ns", "description": "Some.", "tools": [TOOL]},
}


@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("reasoning", [None, {"summary": "auto"}])
def test_every_event_is_valid(client, kind, reasoning):
    adapter = pydantic.TypeAdapter(ResponseStreamEvent)
    events = list(ask(client, "go", tools=[TOOLS[kind]], reasoning=reasoning, stream=True))
    for event in events:
        adapter.validate_python(event.to_dict())
    assert events[-1].type == "response.completed"
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response.output == done


def test_log_probabilities(client):
    events = list(ask(client, "say:ab", include=["message.output_text.logprobs"], top_logprobs=2, stream=True))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [entry.token for event in deltas for entry in event.logprobs][:2] == ["a", "b"]


def test_the_stream_helper_puts_the_response_together(client):
    with client.responses.stream(model="scripted", input="weather?", tools=[TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output[-1].arguments == '{"location": "Málaga"}'


def test_input_items(client):
    output = {"type": "function_call_output", "call_id": "c", "output": "say:sunny"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    response = ask(client, [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, call, output])
    items = list(client.responses.input_items.list(response.id, order="asc"))
    assert [item.type for item in items] == ["message", "message", "function_call", "function_call_output"]


def test_in_the_background(client):
    response = ask(client, "slow-loop:x", background=True)
    assert response.status == "queued"
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"


def test_counting(client):
    counted = client.responses.input_tokens.count(model="scripted", input="say:x")
    assert counted.input_tokens == ask(client, "say:x").usage.input_tokens


def test_errors_are_the_clients_classes(client):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, "x" * 9000)
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, "x", previous_response_id="resp_none")
    assert raised.value.code == "previous_response_not_found"


def test_what_clients_ask_for_by_parsing(client):
    answer = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "weather?"}],
        tools=[{"type": "function", "function": {"name": "get_weather", "parameters": TOOL["parameters"]}}],
    )  # fmt: skip
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
