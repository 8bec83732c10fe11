from __future__ import annotations

import asyncio
import json

import pytest
from conftest import in_process

from caudal.server.settings import ServerSettings


async def chat(http, text, **fields):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}
    return await http.post("/v1/chat/completions", json=body)


async def complete(http, prompt, **fields):
    return await http.post("/v1/completions", json={"model": "scripted", "prompt": prompt, **fields})


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error_of(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_chat_answers(http):
    body = (await chat(http, "say:Grüße, 世界 🎉")).json()
    assert body["choices"][0]["message"]["content"] == "Grüße, 世界 🎉"
    assert body["choices"][0]["finish_reason"] == "stop"
    num_tokens = len("Grüße, 世界 🎉".encode()) + 1
    assert body["usage"]["completion_tokens"] == num_tokens
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + num_tokens


async def test_stream_begins_with_the_role_and_ends_with_the_reason(http):
    chunks = events(await chat(http, "say:añb 🎉!", stream=True))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stop": ["END"]},
        {"stop": "🎉"},
        {"stop": ["ñb 🎉", "zz"]},
        {"stop": ["b"], "include_stop_str_in_output": True},
        {"stop": ["b"], "min_tokens": 5},
        {"max_tokens": 3},
        {"max_tokens": 6},
        {"stop_token_ids": [ord("b")]},
        {"ignore_eos": True, "max_tokens": 40},
        {"skip_special_tokens": False},
        {"logprobs": True, "top_logprobs": 2},
        {"n": 3},
    ],
)
async def test_stream_equals_whole(http, fields):
    text = "say:añb 🎉! E END b"
    whole = (await chat(http, text, **fields)).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(await chat(http, text, **fields, **options))
    assert last["choices"] == []
    assert last["usage"] | {"prompt_tokens_details": 0} == whole["usage"] | {"prompt_tokens_details": 0}
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]
        if "logprobs" in fields:
            streamed = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
            assert streamed == choice["logprobs"]["content"]
        assert all("�" not in c["delta"].get("content", "") for c in mine[:-2])


async def test_stop_string_ends_the_answer_before_it_and_the_request_in_the_engine(http):
    body = (await chat(http, "loop:abc STOP ", stop=["STOP"])).json()
    assert body["choices"][0]["message"]["content"] == "abc "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "STOP"
    assert body["usage"]["completion_tokens"] == len("abc STOP")
    await until(lambda: not http.engine.has_work)


async def test_a_token_split_over_a_character_is_held_back_until_the_end(http):
    body = (await chat(http, "say:🎉", max_tokens=2)).json()
    assert body["choices"][0]["message"]["content"] == "�"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_cached_prompt_tokens_are_reported(http):
    long = "x" * 100
    await chat(http, long)
    usage = (await chat(http, long)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 16 * 16


async def test_usage_in_every_chunk(http):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await chat(http, "say:abc", stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_chat_logprobs(http):
    body = (await chat(http, "say:é", logprobs=True, top_logprobs=2)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    assert [entry["bytes"] for entry in content[:2]] == [[0xC3], [0xA9]]
    assert content[0]["token"] == "bytes:\\xc3"
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -1.5]


async def test_prompt_logprobs(http):
    body = (await chat(http, "x", prompt_logprobs=1)).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert body["prompt_logprobs"][0] is None
    assert body["prompt_logprobs"][1][str(ord("<"))] == {"logprob": -0.5, "rank": 1, "decoded_token": "<"}


async def test_every_prompt_form(http):
    ids = list(b"say:hi")
    for prompt in ("say:hi", ids, ["say:hi"], [ids]):
        body = (await complete(http, prompt)).json()
        assert [choice["text"] for choice in body["choices"]] == ["hi"]
    body = (await complete(http, ["say:a", ids, "say:ñ"], n=2)).json()
    assert [choice["text"] for choice in body["choices"]] == ["a", "a", "hi", "hi", "ñ", "ñ"]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["completion_tokens"] == 2 * (2 + 3 + 3)


async def test_completions_default_to_16_tokens(http):
    body = (await complete(http, "loop:x")).json()
    assert body["choices"][0]["text"] == "x" * 16
    assert body["choices"][0]["finish_reason"] == "length"


async def test_chat_defaults_to_the_rest_of_the_context(http):
    body = (await chat(http, "loop:x")).json()
    assert body["usage"]["total_tokens"] == 512


@pytest.mark.parametrize("limit", [-1, -2, -(2**40)])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
async def test_a_negative_limit_is_none(http, name, limit):
    """llama.cpp's web UI, and clients that ask /props for the defaults, send -1."""
    assert len((await chat(http, "loop:x", **{name: limit})).json()["choices"][0]["message"]["content"]) > 400
    if name != "max_completion_tokens":  # a field of chat
        assert len((await complete(http, "loop:x", **{name: limit})).json()["choices"][0]["text"]) > 400


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"n_predict": 5}, 5),
        ({"n_predict": 5, "max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 7, "max_completion_tokens": None, "n_predict": -1}, 7),
    ],
)
async def test_the_names_of_the_limit(http, fields, length):
    assert (await chat(http, "loop:x", **fields)).json()["choices"][0]["message"]["content"] == "x" * length
    if "max_completion_tokens" not in fields:
        assert (await complete(http, "loop:x", **fields)).json()["choices"][0]["text"] == "x" * length


async def test_an_answer_longer_than_the_context_is_shortened(http):
    body = (await chat(http, "loop:x", max_tokens=32000)).json()
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


async def test_echo(http):
    body = (await complete(http, "ñ say:hi", echo=True)).json()
    assert body["choices"][0]["text"] == "ñ say:hihi"
    chunks = events(await complete(http, list("ñ say:hi".encode()), echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ñ say:hihi"


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_scoring_a_prompt(http, max_tokens):
    prompts = [list("ñ1 ".encode()), list(b"ok")]
    body = (await complete(http, prompts, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0)).json()
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        logprobs = choice["logprobs"]
        num_scored = len(prompt) + max_tokens
        assert {len(column) for column in logprobs.values()} == {num_scored}
        assert logprobs["token_logprobs"] == [None, *[-0.5] * (num_scored - 1)]
        assert logprobs["top_logprobs"][1] == {logprobs["tokens"][1]: -0.5}
        assert choice["text"][: len(bytes(prompt).decode())] == bytes(prompt).decode()
    assert body["choices"][0]["logprobs"]["text_offset"][:4] == [0, 0, 1, 2]
    assert body["usage"]["completion_tokens"] == 2 * max_tokens


async def test_completion_logprobs_stream_equals_whole(http):
    fields = {"logprobs": 2, "echo": True}
    whole = (await complete(http, "é say:aé", **fields)).json()["choices"][0]
    chunks = [c["choices"][0] for c in events(await complete(http, "é say:aé", stream=True, **fields))]
    assert "".join(c["text"] for c in chunks) == whole["text"]
    for column, entries in whole["logprobs"].items():
        assert [entry for c in chunks for entry in c["logprobs"][column]] == entries


async def test_seeds_of_choices_differ(http):
    seen = []
    add = http.engine.add_request
    http.engine.add_request = lambda request: (seen.append(request.params.seed), add(request))
    await chat(http, "x", n=3, seed=2**64 - 1)
    await chat(http, "x", n=1, seed=-1)
    assert seen == [2**64 - 1, 0, 1, None]


async def test_sampling_fields_reach_the_engine(http):
    seen = []
    add = http.engine.add_request
    http.engine.add_request = lambda request: (seen.append(request), add(request))
    fields = {
        "temperature": 0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "min_tokens": 2,
        "max_completion_tokens": 7,
        "ignore_eos": True,
        "stop_token_ids": [1],
        "skip_special_tokens": False,
    }
    response = await chat(http, "x", **fields, logit_bias={"65": -1}, priority=-3, cache_salt="s", user="ignored")
    assert response.status_code == 200
    params = seen[0].params
    renamed = {"max_completion_tokens": "max_tokens"}
    for name, value in fields.items():
        given = tuple(value) if isinstance(value, list) else value
        assert getattr(params, renamed.get(name, name)) == given
    assert params.logit_bias == {65: -1.0}
    assert (seen[0].priority, seen[0].cache_salt, seen[0].eos_token_ids) == (-3, "s", (257,))


async def test_messages_of_every_shape(http):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say:"}, {"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "42", "unknown": {"deep": [1]}},
        {"role": "assistant", "reasoning_content": "hm"},
        {"role": "user", "content": "say:yes"},
    ]
    response = await http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages, "store": True})
    assert response.json()["choices"][0]["message"]["content"] == "yes"


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/", "//v1//models"])
async def test_models(http, path):
    body = (await http.get(path)).json()
    assert [card["id"] for card in body["data"]] == ["scripted", "org/other:tag"]
    assert {card["max_model_len"] for card in body["data"]} == {512}


async def test_one_model(http):
    assert (await http.get("/v1/models/org/other:tag")).json()["id"] == "org/other:tag"
    assert error_of(await http.get("/v1/models/nope"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions/", "/v1//chat/completions?beta=true"])
async def test_chat_paths(http, path):
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "say:hi"}]})
    response = await http.post(path, content=body, headers={"content-type": "text/plain"})
    assert response.json()["choices"][0]["message"]["content"] == "hi"


async def test_tokenize_and_back(http):
    body = (await http.post("/tokenize", json={"prompt": "añ", "return_token_strs": True})).json()
    assert body == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [256, 97, 0xC3, 0xB1],
        "token_strs": ["<|256|>", "a", "bytes:\\xc3", "bytes:\\xb1"],
    }
    plain = (await http.post("/tokenize", json={"prompt": "añ", "add_special_tokens": False})).json()
    assert (await http.post("/detokenize", json={"tokens": plain["tokens"]})).json() == {
        "prompt": "añ",
        "content": "añ",
    }
    conversation = {"messages": [{"role": "user", "content": "x"}]}
    assert (await http.post("/tokenize", json=conversation)).json()["count"] == 1 + len("<user>x\n<assistant>")
    assert error_of(await http.post("/detokenize", json={"tokens": [260]}), 400)["param"] == "tokens"
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    with_tools = (await http.post("/tokenize", json={**conversation, **tools})).json()
    assert with_tools["count"] == 1 + len("<tool>f\n<user>x\n<assistant>")


@pytest.mark.parametrize("path", ["/nope", "/nope?x=%ff", "/v1/chat/completions?x=\xff"])
async def test_what_is_not_there_is_an_error_body_whatever_the_query(http, path):
    response = await http.request("GET", path)
    assert response.status_code in (404, 405)
    assert response.json()["error"]["message"]


async def test_status_routes(http):
    assert (await http.get("/health")).status_code == 200
    assert (await http.head("/")).status_code == 200
    assert (await http.get("/version")).json()["version"]


async def test_metrics(http):
    await chat(http, "say:abc")
    await complete(http, "say:abc", max_tokens=2)
    text = (await http.get("/metrics")).text
    label = 'model_name="scripted"'
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values[f"vllm:generation_tokens_total{{{label}}}"]) == 6
    assert float(values[f'vllm:request_success_total{{finished_reason="stop",{label}}}']) == 1
    assert float(values[f'vllm:request_success_total{{finished_reason="length",{label}}}']) == 1
    for name in ("time_to_first_token", "e2e_request_latency"):
        assert float(values[f"vllm:{name}_seconds_count{{{label}}}"]) == 2
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f"vllm:{name}{{{label}}}" in values
    for name in ("inter_token_latency", "time_per_output_token", "request_time_per_output_token"):
        assert f"vllm:{name}_seconds_count{{{label}}}" in values
    cache = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert 'cache_dtype="f16"' in cache
    assert cache.endswith(" 1.0")
    assert "vllm:prefix_cache_hits_total" in text
    for name, value in (("drafts", 2), ("draft_tokens", 9), ("accepted_tokens", 5)):
        assert float(values[f"vllm:spec_decode_num_{name}_total{{{label}}}"]) == value
    assert "vllm:prefix_cache_queries_total" in text


async def test_silence_is_filled_with_comments():
    settings = ServerSettings(ping_interval_s=0.05, first_byte_wait_s=0.01)
    async with in_process(settings) as http:
        response = await chat(http, "hang say:x", stream=True)
        assert response.text.startswith(": ping\n\n")
        assert events(response)[-1]["choices"][0]["finish_reason"] == "stop"


async def until(condition, timeout_s=3):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the engine's thread has no event for it
            await asyncio.sleep(0.01)
