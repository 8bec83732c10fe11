from __future__ import annotations

import json


async def chat(http, text, **fields):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}
    return await http.post("/v1/chat/completions", json=body)


async def complete(http, prompt, **fields):
    return await http.post("/v1/completions", json={"model": "scripted", "prompt": prompt, **fields})


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_chat_answers(http):
    response = await chat(http, "say:Grüße, 世界 🎉")
    assert response.status_code == 200
    body = response.json()
    assert body["choices"][0]["message"]["content"] == "Grüße, 世界 🎉"
    assert body["choices"][0]["finish_reason"] == "stop"
    num_tokens = len("Grüße, 世界 🎉".encode()) + 1
    assert body["usage"]["completion_tokens"] == num_tokens
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + num_tokens


async def test_stream_equals_whole(http):
    whole = (await chat(http, "say:añb 🎉!")).json()
    chunks = events(await chat(http, "say:añb 🎉!", stream=True))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("�" not in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)
