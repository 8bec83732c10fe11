"""The official anthropic client, validating every answer, over real sockets."""

from __future__ import annotations

import pytest
from calling_server import calling_server

anthropic = pytest.importorskip("anthropic", reason="needs the anthropic package (the `test` extra)")
pydantic = pytest.importorskip("pydantic", reason="needs the anthropic package (the `test` extra)")

TOOL = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


@pytest.fixture(scope="module")
def base_url():
    with calling_server() as url:
        yield url


@pytest.fixture
def client(base_url):
    with anthropic.Anthropic(
        base_url=base_url, api_key="any", _strict_response_validation=True, max_retries=0, timeout=20
    ) as client:
        yield client


def ask(client, text, **fields):
    given = {"model": "scripted", "max_tokens": 400, "messages": [{"role": "user", "content": text}], **fields}
    return client.messages.create(**given)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["scripted", "claude-sonnet-4-local", "gpt-5-local"]
    assert client.models.retrieve("gpt-5-local").max_input_tokens == 8192


def test_a_message(client):
    message = ask(client, "say:añ 🎉")
    assert message.content[0].text == "añ 🎉"
    assert message.stop_reason == "end_turn"
    assert message._request_id.startswith("req_")


def test_a_tool_loop(client):
    message = ask(client, "weather?", tools=[TOOL])
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    call = message.content[-1]
    assert (call.name, call.input, message.stop_reason) == ("get_weather", {"location": "Málaga"}, "tool_use")
    turns = [
        {"role": "user", "content": "weather?"},
        message.to_param(),
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "say:sunny"}]},
    ]
    assert ask(client, "", messages=turns, tools=[TOOL]).content[0].text == "sunny"


def test_every_event_is_valid(client):
    adapter = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)
    stream = ask(client, "weather?", tools=[TOOL], stream=True)
    types = [adapter.validate_python(event.to_dict(), strict=True).type for event in stream]
    assert (types[0], types[-2:]) == ("message_start", ["message_delta", "message_stop"])


def test_the_stream_helper_puts_the_message_together(client):
    whole = ask(client, "weather?", tools=[TOOL])
    with client.messages.stream(
        model="scripted", max_tokens=400, messages=[{"role": "user", "content": "weather?"}], tools=[TOOL]
    ) as stream:
        final = stream.get_final_message()
    assert final.content[0] == whole.content[0]
    assert final.content[2].input == whole.content[2].input
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_count_tokens(client):
    counted = client.messages.count_tokens(model="scripted", messages=[{"role": "user", "content": "say:x"}])
    usage = ask(client, "say:x").usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_clients_classes(client):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, "x", model="gpt-9")
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: [0-9]+ tokens > 8191 maximum") as raised:
        ask(client, "x" * 9000)
    assert raised.value.type == "invalid_request_error"
    assert raised.value.request_id.startswith("req_")
    with pytest.raises(anthropic.InternalServerError):
        ask(client, "crash")
