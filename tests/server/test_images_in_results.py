"""A tool that returns an image does not end the conversation; a user who sends one is told."""

from __future__ import annotations

import pytest
from conftest import in_process
from tagged_format import CallingTokenizer

SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
PNG = "data:image/png;base64,AA=="
LEFT_OUT = "[image left out: this model reads text]"


def messages_api(role, part):
    text = {"type": "text", "text": "seen"}
    parts = [text, part]
    if role == "user":
        return "/v1/messages", {"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": parts}]}
    call = {"type": "tool_use", "id": "t1", "name": "shot", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": parts}
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "say:ok"}]},
    ]
    return "/v1/messages", {"model": "scripted", "max_tokens": 9, "messages": turns}


def responses_api(role, part):
    parts = [{"type": "input_text", "text": "seen"}, part]
    if role == "user":
        return "/v1/responses", {"model": "scripted", "input": [{"role": "user", "content": parts}]}
    kind = "custom_tool_call" if role == "custom" else "function_call"
    call = {"type": kind, "call_id": "t1", "name": "shot", "arguments": "{}", "input": ""}
    result = {"type": f"{kind}_output", "call_id": "t1", "output": parts}
    return "/v1/responses", {"model": "scripted", "input": [call, result, {"role": "user", "content": "say:ok"}]}


def chat_api(role, part):
    parts = [{"type": "text", "text": "seen"}, part]
    if role == "user":
        return "/v1/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": parts}]}
    call = {"id": "t1", "type": "function", "function": {"name": "shot", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": role, "tool_call_id": "t1", "name": "shot", "content": parts},
        {"role": "user", "content": "say:ok"},
    ]
    return "/v1/chat/completions", {"model": "scripted", "messages": turns}


def ollama_api(role, part):
    turns = [{"role": role, "content": "seen", "images": [part]}, {"role": "user", "content": "say:ok"}]
    return "/api/chat", {"model": "scripted", "messages": turns, "stream": False}


APIS = [
    (messages_api, "tool", {"type": "image", "source": SOURCE}),
    (messages_api, "tool", {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}),
    (responses_api, "tool", {"type": "input_image", "image_url": PNG}),
    (responses_api, "custom", {"type": "input_image", "image_url": PNG, "text": "not a text"}),
    (chat_api, "tool", {"type": "image_url", "image_url": {"url": PNG}}),
    (chat_api, "function", {"type": "image_url", "image_url": PNG}),
    (ollama_api, "tool", "AA=="),
]


@pytest.mark.parametrize(("api", "role", "part"), APIS)
async def test_the_model_is_told_of_an_image_in_a_result(api, role, part):
    tokenizer = CallingTokenizer()
    async with in_process(tokenizer=tokenizer, max_model_len=8192) as http:
        path, body = api(role, part)
        response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    messages, *_ = tokenizer.conversations[-1]
    (result,) = [message for message in messages if message["role"] in ("tool", "function")]
    assert result["content"] == f"seen\n{LEFT_OUT}"


@pytest.mark.parametrize(("api", "role", "part"), APIS)
async def test_a_users_own_image_is_refused(api, role, part):
    async with in_process(max_model_len=8192) as http:
        path, body = api("user", part)
        response = await http.post(path, json=body)
    assert response.status_code == 400
    assert "image" in response.text


@pytest.mark.parametrize(
    ("api", "part", "kind"),
    [
        (messages_api, {"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}, "document"),
        (responses_api, {"type": "input_file", "file_data": PNG}, "document"),
        (chat_api, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "recording"),
        (chat_api, {"type": "video_url", "video_url": {"url": PNG}}, "video"),
    ],
)
async def test_other_kinds_without_text_are_told_by_their_name(api, part, kind):
    tokenizer = CallingTokenizer()
    async with in_process(tokenizer=tokenizer, max_model_len=8192) as http:
        path, body = api("tool", part)
        assert (await http.post(path, json=body)).status_code == 200
        path, body = api("user", part)
        assert (await http.post(path, json=body)).status_code == 400
    (result,) = [message for message in tokenizer.conversations[0][0] if message["role"] == "tool"]
    assert result["content"] == f"seen\n[{kind} left out: this model reads text]"


@pytest.mark.parametrize("api", [messages_api, responses_api, chat_api])
async def test_a_part_that_nobody_knows_is_refused_in_a_result_too(api):
    async with in_process(max_model_len=8192) as http:
        path, body = api("tool", {"type": "hologram"})
        response = await http.post(path, json=body)
    assert response.status_code == 400
    assert "hologram" in response.text
