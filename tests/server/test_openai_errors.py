from __future__ import annotations

import asyncio
import json

import pytest
from conftest import in_process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_openai_routes import chat, complete, error_of, events, until

from caudal.server.openai.chat_protocol import ChatRequest
from caudal.server.openai.completion_protocol import CompletionRequest
from caudal.server.settings import ServerSettings


async def test_a_chat_names_its_model_where_openai_wants_it(http):
    body = {"messages": [{"role": "user", "content": "say:hi"}]}
    assert error_of(await http.post("/v1/chat/completions", json=body), 400)["param"] == "model"
    assert (await http.post("/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n_predict": 0}, "n_predict"),
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"repeat_penalty": -1.0}, "repetition_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**30}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1e39}}, "logit_bias"),
        ({"logit_bias": {"5": -1e39}}, "logit_bias"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stop_token_ids": [260]}, "stop_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": "x" * 200}, "cache_salt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"stream_options": {"include_usage": 3}}, "stream_options"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tool_choice",
        ),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
async def test_wrong_values_name_the_field(http, fields, param):
    error = error_of(await chat(http, "x", **fields), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"structured_outputs": {"regex": "a", "structural_tag": "{}"}}, "structured_outputs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"dynatemp_range": 0.5}, "dynatemp_range"),
        ({"mirostat": 2}, "mirostat"),
        ({"top_n_sigma": 1.0}, "top_n_sigma"),
        ({"xtc_probability": 0.5}, "xtc_probability"),
        ({"reasoning_format": "deepseek-legacy"}, "reasoning_format"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(http, fields, param):
    error = error_of(await chat(http, "x", **fields), 400)
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "functions": None},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"n": 1, "best_of": 1, "use_beam_search": False, "unknown": {"a": [1]}},
        {"dry_multiplier": 0.0, "dynatemp_range": 0, "mirostat": 0, "top_n_sigma": -1.0, "xtc_probability": 0},
        {"repeat_penalty": 1.0, "repeat_last_n": 64, "presence_penalty": 0, "frequency_penalty": 0.0},
        {"reasoning_effort": "high", "store": False, "service_tier": "auto", "include_reasoning": True},
    ],
)
async def test_what_asks_for_nothing_is_accepted(http, fields):
    assert (await chat(http, "x", **fields)).status_code == 200


async def test_suffix_is_refused(http):
    assert error_of(await complete(http, "x", suffix="y"), 400)["param"] == "suffix"


@pytest.mark.parametrize("prompt", [[], "", ["a", 1], [[260]], [-1], [[]], [[1], "a", []], None, 3, [1.5]])
async def test_bad_prompts(http, prompt):
    response = await complete(http, prompt, add_special_tokens=False)
    assert error_of(response, 400)["param"] == "prompt"


async def test_a_prompt_that_does_not_fit_is_refused_in_the_known_words(http):
    for response in (await chat(http, "x" * 600), await complete(http, "x" * 600)):
        error = error_of(response, 400)
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 512 tokens" in error["message"]


async def test_template_errors_are_the_clients(http):
    error = error_of(await chat(http, "refuse-me"), 400)
    assert "template refuses" in error["message"]


async def test_unknown_model(http):
    assert error_of(await chat(http, "x", model="gpt-9"), 404)["code"] == "model_not_found"
    assert (await chat(http, "x", model="org/other:tag")).json()["model"] == "org/other:tag"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff{}", b"[" * 100_000, b'"x"', b'{"messages":1e999}'])
async def test_bodies_that_are_no_request(http, body):
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        error_of(await http.post(path, content=body), 400)


async def test_large_bodies_are_refused():
    async with in_process(ServerSettings(max_body_bytes=1000)) as http:
        assert error_of(await complete(http, "x" * 2000), 413)["code"] == "request_too_large"

        async def chunks():
            for _ in range(100):
                yield b"x" * 100

        error_of(await http.post("/v1/completions", content=chunks()), 413)


async def test_wrong_routes_and_methods(http):
    assert error_of(await http.get("/v2/what"), 404)["code"] == "not_found"
    response = await http.get("/v1/chat/completions")
    assert "POST" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"


async def test_full_server_says_429():
    async with in_process(ServerSettings(max_open_requests=2)) as http:
        task = asyncio.create_task(chat(http, "slow-loop:x", n=2, max_tokens=50))
        await until(lambda: len(http.engine.running) == 2)
        response = await chat(http, "x")
        assert error_of(response, 429)["type"] == "rate_limit_error"
        assert int(response.headers["retry-after"]) >= 1
        assert error_of(await chat(http, "x", n=3), 400)["param"] == "n"
        assert (await task).status_code == 200
        assert (await chat(http, "x")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_full_engine_says_429(stream):
    async with in_process(max_num_seqs=1, max_queue_len=1) as http:
        tasks = [asyncio.create_task(chat(http, "slow-loop:x", max_tokens=50)) for _ in range(2)]
        await until(lambda: len(http.engine.waiting) == 1)
        response = await chat(http, "x", stream=stream)
        assert error_of(response, 429)["code"] == "overloaded"
        for task in tasks:
            assert (await task).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_step_fails_its_requests_and_no_more(http, stream, capfd):
    error = error_of(await chat(http, "crash", stream=stream), 500)
    assert error["type"] == "server_error"
    assert "ZeroDivisionError" in error["message"]
    assert (await chat(http, "say:still here")).json()["choices"][0]["message"]["content"] == "still here"
    capfd.readouterr()


async def test_a_failure_in_mid_stream_is_an_error_event(capfd):
    async with in_process() as http:
        task = asyncio.create_task(chat(http, "slow-loop:x", stream=True))
        await until(lambda: http.engine.running and http.engine.running[0].num_tokens > 3)
        await chat(http, "crash")
        text = (await task).text
        *_, event = text.strip().split("\n\n")
        name, data = event.split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == "engine_error"
        assert "[DONE]" not in text
    capfd.readouterr()


async def test_keys():
    async with in_process(ServerSettings(api_keys=("secret", "other"))) as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}, {"authorization": "secret"}):
            response = await http.get("/v1/models", headers=headers)
            assert error_of(response, 401)["code"] == "invalid_api_key"
        for headers in (
            {"authorization": "Bearer secret"},
            {"authorization": "bearer other"},
            {"x-api-key": "secret"},
            {"api-key": "other"},
        ):
            assert (await http.get("/v1/models", headers=headers)).status_code == 200
        assert (await http.get("/health")).status_code == 200
        for path in ("/metrics", "/version", "/tokenize", "//v1/models", "/nowhere"):
            assert (await http.get(path)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000", "origin": "http://localhost:3000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "rebound.example:8000"}, 403),
        ({"host": "rebound.example", "origin": "http://rebound.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://page.example"}, 200),
        ({"host": "page.example"}, 200),
    ],
)
async def test_foreign_pages_cannot_use_a_server_without_a_key(headers, status):
    async with in_process(ServerSettings(allowed_origins=("http://page.example",))) as http:
        assert (await http.get("/v1/models", headers=headers)).status_code == status


async def test_a_server_for_others_answers_to_any_name_but_no_foreign_page():
    async with in_process(ServerSettings(host="0.0.0.0", insecure_no_key=True)) as http:
        host = {"host": "gpu-box:8000"}
        assert (await http.get("/v1/models", headers=host)).status_code == 200
        assert (await http.get("/v1/models", headers={**host, "origin": "http://gpu-box:8000"})).status_code == 200
        assert (await http.get("/v1/models", headers={**host, "origin": "http://evil"})).status_code == 403


async def test_any_key_is_accepted_when_there_is_none(http):
    assert (await http.get("/v1/models", headers={"authorization": "Bearer whatever"})).status_code == 200


async def test_cors_only_for_listed_origins():
    async with in_process(ServerSettings(allowed_origins=("http://page.example",), api_keys=("k",))) as http:
        preflight = {"origin": "http://page.example", "access-control-request-method": "POST"}
        response = await http.options("/v1/chat/completions", headers=preflight)
        assert response.headers["access-control-allow-origin"] == "http://page.example"
        response = await http.get("/v1/models", headers={"origin": "http://page.example", "x-api-key": "k"})
        assert response.headers["access-control-allow-origin"] == "http://page.example"
        response = await http.get("/v1/models", headers={"origin": "http://evil.example", "x-api-key": "k"})
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("keys", [(), ("k",)])
@pytest.mark.parametrize(
    ("origin", "may"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:8080", True),
        ("http://localhost.evil.example", False),
        ("http://evil.example/http://localhost", False),
        ("http://localhost:3000.evil.example", False),
        ("https://evil.example", False),
        ("null", False),
    ],
)
async def test_pages_of_this_machine_may_read_answers(origin, may, keys):
    async with in_process(ServerSettings(api_keys=keys)) as http:
        asks = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-api-key",
        }
        preflight = await http.options("/v1/chat/completions", headers=asks)
        answer = await http.get("/v1/models", headers={"origin": origin, "x-api-key": "k"})
    for response in (preflight, answer):
        assert response.headers.get("access-control-allow-origin") == (origin if may else None)
        assert "access-control-allow-credentials" not in response.headers
    assert preflight.is_success == may


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
likely_values = st.sampled_from([0, 1, 2, -1, 1.5, "", "x", [], {}, [1], ["a"], [[1, 2]], {"1": 1}, True, False, None])


def bodies(request_type, required):
    fields = {name: likely_values | json_values for name in request_type.__struct_fields__ if name != "model"}
    chosen = st.sets(st.sampled_from(sorted(fields)), max_size=4)
    some = chosen.flatmap(lambda names: st.fixed_dictionaries({name: fields[name] for name in names}))
    return st.builds(lambda extra, odd: odd or {**required, **extra}, some, st.none() | json_values)


async def test_no_body_is_a_500():
    async with in_process(ServerSettings(max_open_requests=8), max_model_len=64) as http:
        loop = asyncio.get_running_loop()

        def post(path, body):
            data = json.dumps(body).encode("utf-8", "surrogatepass")
            return asyncio.run_coroutine_threadsafe(http.post(path, content=data), loop).result(10)

        def prove(path, made):
            @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
            @given(body=made)
            def check(body):
                response = post(path, body)
                assert response.status_code in (200, 400, 404), (body, response.text)
                if response.status_code != 200:
                    error_of(response, response.status_code)
                elif body.get("stream"):
                    events(response)

            check()

        chat_bodies = bodies(ChatRequest, {"messages": [{"role": "user", "content": "say:ñ"}]})
        completion_bodies = bodies(CompletionRequest, {"prompt": "say:ñ"})
        await asyncio.to_thread(prove, "/v1/chat/completions", chat_bodies)
        await asyncio.to_thread(prove, "/v1/completions", completion_bodies)
        assert http.engine_client.num_open == 0
