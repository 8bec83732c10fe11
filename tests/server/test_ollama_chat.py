from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime

import pytest
from peer_app import HONOURS_RULES, BaseTokenizer, peer_app, prompt_text

import caudal.server.conversation
from caudal.server.ollama.answer_lines import ContentReader
from caudal.server.settings import ServerSettings
from caudal.tools.formats import format_of
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")
COUNTS = {"prompt_eval_count", "eval_count"}
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}


@pytest.fixture
async def peer():
    async with peer_app() as client:
        yield client


async def chat(http, text, **fields):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}
    return await http.post("/api/chat", json=body)


async def whole(http, text, **fields):
    response = await chat(http, text, stream=False, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def lines(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def error_of(response, status=400):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    return body["error"]


async def test_a_stream_is_the_default_and_made_of_lines(peer):
    *parts, last = lines(await chat(peer, "say:añ 🎉"))
    assert "".join(part["message"]["content"] for part in parts) == "añ 🎉"
    assert all(part["done"] is False and set(part) == {"model", "created_at", "message", "done"} for part in parts)
    assert set(last) == {"model", "created_at", "message", "done", "done_reason", *COUNTS, *DURATIONS}
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"], last["model"]) == (True, "stop", "scripted")
    assert last["eval_count"] == len("añ 🎉".encode()) + 1
    assert all(isinstance(last[name], int) and last[name] >= 0 for name in COUNTS | DURATIONS)
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"] > 0


async def test_created_at_is_the_time_with_nanoseconds(peer):
    for line in lines(await chat(peer, "say:x")):
        assert STAMP.fullmatch(line["created_at"])
        age = datetime.now().astimezone() - datetime.fromisoformat(line["created_at"])
        assert abs(age.total_seconds()) < 60


@pytest.mark.parametrize(
    "options",
    [{}, {"num_predict": 3}, {"stop": ["🎉"]}, {"stop": "b"}, {"num_predict": -1, "seed": 3}, {"num_ctx": 10**9}],
)
async def test_stream_equals_whole(peer, options):
    answer = await whole(peer, "say:añb 🎉!", options=options, logprobs=True, top_logprobs=2)
    *parts, last = lines(await chat(peer, "say:añb 🎉!", options=options, logprobs=True, top_logprobs=2))
    assert "".join(part["message"]["content"] for part in parts) == answer["message"]["content"]
    told = [entry for line in (*parts, last) for entry in line.get("logprobs", [])]
    assert told == answer["logprobs"]
    assert len(told) == answer["eval_count"] == last["eval_count"]
    assert last["done_reason"] == answer["done_reason"]


async def test_done_reason_is_length_when_num_predict_ends_the_answer(peer):
    answer = await whole(peer, "say:hello", options={"num_predict": 2})
    assert (answer["message"]["content"], answer["done_reason"], answer["eval_count"]) == ("he", "length", 2)


async def test_log_probabilities(peer):
    answer = await whole(peer, "say:ñ", top_logprobs=2)
    first = answer["logprobs"][0]
    assert first["bytes"] == [0xC3]
    assert first["logprob"] == -0.5
    assert [entry["logprob"] for entry in first["top_logprobs"]] == [-0.5, -1.5]
    assert "logprobs" not in await whole(peer, "say:x")
    assert "top_logprobs" not in (await whole(peer, "say:x", logprobs=True))["logprobs"][0]


async def test_defaults_are_ollamas(peer):
    seen = []
    add = peer.engine.add_request
    peer.engine.add_request = lambda request: (seen.append(request.params), add(request))[1]
    await whole(peer, "say:x")
    await whole(peer, "say:x", options={"temperature": -1, "top_p": 0, "top_k": -4, "repeat_penalty": 1.2, "min_p": 9})
    default, given = seen
    assert (default.temperature, default.top_k, default.top_p, default.min_p) == (0.8, 40, 0.9, 0.0)
    assert (default.repetition_penalty, default.typical_p, default.seed) == (1.0, 1.0, None)
    assert (given.temperature, given.top_k, given.top_p, given.min_p) == (0.0, 0, 1e-9, 1.0)
    assert given.repetition_penalty == 1.2


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"mirostat": 2}, "mirostat"),
        ({"tfs_z": 0.5}, "tfs_z"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
        ({"temperature": "warm"}, "temperature"),
        ({"stop": [str(i) for i in range(100)]}, "stop"),
    ],
)
async def test_an_option_that_cannot_be_honoured_is_named(peer, options, name):
    assert name in error_of(await chat(peer, "say:x", options=options))


@pytest.mark.parametrize(
    "options",
    [
        {"mirostat": 0, "tfs_z": 1.0, "repeat_last_n": 64, "penalize_newline": True, "num_gpu": 1, "numa": False},
        {"repeat_penalty": 1.1, "repeat_last_n": -1},
        {"repeat_penalty": 1.1, "repeat_last_n": 0},
        {"temperature": None, "seed": 2**70, "num_predict": 2**40, "top_k": 2**40},
    ],
)
async def test_neutral_and_loading_options_are_taken(peer, options):
    assert (await whole(peer, "say:x", options=options))["message"]["content"] == "x"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"format": "yaml"}, "format"),
        ({"format": {"type": "nonsense"}}, "format"),
        ({"format": [1]}, "format"),
        ({"think": "very"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "web"}]}, "tools"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "512"),
        ({"messages": 3}, "messages"),
    ],
)
async def test_what_is_refused_is_named(peer, fields, word):
    assert word in error_of(await chat(peer, "say:x", **fields))


@pytest.mark.parametrize("output_format", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_format_is_honoured_or_refused(peer, path, output_format):
    seen = []
    add = peer.engine.add_request
    peer.engine.add_request = lambda request: (seen.append(request.grammar), add(request))[1]
    body = {"messages": [{"role": "user", "content": "say:x"}], "prompt": "say:x", "format": output_format}
    response = await peer.post(path, json=body)
    if HONOURS_RULES:
        assert response.status_code == 200
        assert "json_schema" in seen[0]
    else:
        assert "format" in error_of(response)


async def test_an_answer_that_is_begun_goes_on(peer):
    begun = [{"role": "user", "content": "say:x"}, {"role": "assistant", "content": "Once upon"}]
    await peer.post("/api/chat", json={"model": "scripted", "messages": begun, "stream": False})
    assert prompt_text(peer).endswith("<assistant>Once upon")
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    await peer.post("/api/chat", json={"model": "scripted", "messages": [begun[0], called], "stream": False})
    assert prompt_text(peer).endswith("<assistant>")


async def test_unknown_fields_and_content_types_do_not_matter(peer):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "say:x"}], "truncate": True, "new": {}}
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = await peer.post("/api/chat?a=b", content=json.dumps(body), headers={"content-type": kind})
        assert lines(response)[-1]["done"] is True


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"messages": ' + b"[" * 9999, b'"x"', b"null"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show", "/api/pull", "/api/embed", "/api/copy"])
async def test_a_broken_body_is_a_400_in_this_shape(peer, path, data):
    error_of(await peer.post(path, content=data))


async def test_an_unknown_model_is_a_404(peer):
    assert "'other' not found" in error_of(await peer.post("/api/chat", json={"model": "other"}), 404)


@pytest.mark.parametrize(
    "name",
    ["org/Scripted:Q4", "org/scripted:q4", "scripted", "scripted:latest", "Scripted", "hf.co/org/Scripted:Q4", None],
)
async def test_a_model_answers_to_its_names(peer, name):
    answer = await whole(peer, "say:x", model=name)
    assert answer["model"] == (name or "org/Scripted:Q4")


@pytest.mark.parametrize(
    ("think", "shown"),
    [
        (None, ""),
        (True, "[enable_thinking=True]"),
        (False, "[enable_thinking=False][reasoning_effort=none]"),
        ("high", "[enable_thinking=True][reasoning_effort=high]"),
    ],
)
async def test_think_sets_the_templates_variables(peer, think, shown):
    await whole(peer, "say:x", think=think)
    assert prompt_text(peer).startswith(f"<|256|>{shown}<user>")


async def test_a_model_that_cannot_think_or_call_says_so():
    class Plain(BaseTokenizer):
        chat_template_source = "{{ messages }}"

    async with peer_app(Plain()) as http:
        assert "does not support thinking" in error_of(await chat(http, "say:x", think=True))
        assert "does not support tools" in error_of(await chat(http, "say:x", tools=[TOOL]))
        assert (await whole(http, "say:x", think=False))["message"]["content"] == "x"


async def test_calls_and_results_in_the_history_find_each_other():
    call = {"function": {"name": "look", "arguments": {"at": "ñ"}}}
    other = {"function": {"name": "find", "arguments": {}}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call, other, call]},
        {"role": "tool", "tool_name": "find", "content": "b"},
        {"role": "tool", "tool_name": "look", "content": "a"},
        {"role": "tool", "content": "c"},
        {"role": "user", "content": "say:x"},
    ]
    async with peer_app(max_model_len=4096) as http:
        assert (await whole(http, "", messages=messages, tools=[TOOL]))["message"]["content"] == "x"
        history = json.loads(re.search(r"\[history=(.*?)\]<tool>", prompt_text(http))[1])
    assistant, *results = history
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "ñ"}}
    ids = [each["id"] for each in assistant["tool_calls"]]
    assert len(set(ids)) == 3
    assert [(r["name"], r["tool_call_id"]) for r in results] == [("find", ids[1]), ("look", ids[0]), ("look", ids[2])]


async def test_tool_choice_none_hides_the_tools(peer):
    await whole(peer, "say:x", tools=[TOOL], tool_choice="none")
    assert "<tool>look" not in prompt_text(peer)
    await whole(peer, "say:x", tools=[TOOL])
    assert "<tool>look" in prompt_text(peer)


class _MarkedParser:
    """Reads ~text as reasoning, and !name|arguments; as a call."""

    def __init__(self):
        self._kind, self._index, self._name = "text", -1, ""

    def push(self, text):
        return [part for char in text for part in self._push(char)]

    def _push(self, char):
        if char == "~":
            self._kind = "text" if self._kind == "reasoning" else "reasoning"
        elif char == "!":
            self._kind, self._name = "name", ""
        elif self._kind == "name" and char == "|":
            self._kind = "arguments"
            self._index += 1
            return [CallBegin(self._index, self._name)]
        elif self._kind == "arguments" and char == ";":
            self._kind = "text"
        elif self._kind == "name":
            self._name += char
        elif self._kind == "arguments":
            return [CallArguments(self._index, char)]
        else:
            return [(ReasoningPart if self._kind == "reasoning" else TextPart)(char)]
        return []

    def finish(self):
        return []


class _MarkedFormat:
    name, markers = "marked", ()

    def parser(self, **_):
        return _MarkedParser()

    def opens_reasoning(self, *_):
        return False


@pytest.fixture
async def marked(monkeypatch):
    monkeypatch.setattr(caudal.server.conversation, "format_of", lambda _: _MarkedFormat())
    async with peer_app() as client:
        yield client


SAID = 'say:~why ñ~so!look|{"at": [1, "ñ"]};!find|{};'


async def test_thinking_and_calls_are_apart_from_the_text(marked):
    message = (await whole(marked, SAID, tools=[TOOL]))["message"]
    assert (message["content"], message["thinking"]) == ("so", "why ñ")
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"index": 0, "name": "look", "arguments": {"at": [1, "ñ"]}},
        {"index": 1, "name": "find", "arguments": {}},
    ]


async def test_streamed_calls_are_whole_and_the_stream_says_the_same(marked):
    *parts, last = lines(await chat(marked, SAID, tools=[TOOL]))
    messages = [part["message"] for part in parts]
    assert "".join(m["content"] for m in messages) == "so"
    assert "".join(m.get("thinking", "") for m in messages) == "why ñ"
    calls = [call["function"]["arguments"] for m in messages for call in m.get("tool_calls", [])]
    assert calls == [{"at": [1, "ñ"]}, {}]
    assert last["done_reason"] == "stop"


async def test_generate_has_thinking_too(marked):
    answer = (await marked.post("/api/generate", json={"prompt": SAID, "stream": False})).json()
    assert (answer["response"], answer["thinking"]) == ("so", "why ñ")


HERMES = '{% if tools %}<tools></tools> <tool_call>{"name": "", "arguments": {}}</tool_call>{% endif %} messages'


@pytest.mark.skipif(format_of(HERMES).name == "plain", reason="the parsers of tool calls are not here yet")
async def test_a_call_as_a_model_writes_it():
    class Hermes(BaseTokenizer):
        chat_template_source = HERMES

    async with peer_app(Hermes()) as http:
        said = 'say:<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
        message = (await whole(http, said, tools=[TOOL]))["message"]
        assert message["content"].strip() == ""
        assert [call["function"]["arguments"] for call in message["tool_calls"]] == [{"at": 1}]


@pytest.mark.skipif(format_of(HERMES).name == "plain", reason="the parsers of reasoning are not here yet")
async def test_thinking_as_a_model_writes_it():
    class Thinking(BaseTokenizer):
        chat_template_source = "{{ messages }} enable_thinking <think></think>"

    async with peer_app(Thinking()) as http:
        message = (await whole(http, "say:<think>hm</think>so", think=True))["message"]
        assert (message["content"].strip(), message["thinking"].strip()) == ("so", "hm")
        *parts, _ = lines(await chat(http, "say:<think>hm</think>so", think=True))
        assert "".join(part["message"].get("thinking", "") for part in parts).strip() == "hm"


def test_arguments_that_are_no_object_do_no_harm():
    """A tool does not run without arguments because those that were meant cannot be read."""
    for text in ("", "[1]", "{", "nul", "[" * 100_000, r'{"a": "\ud83d"}'):
        reader = ContentReader()
        found = reader.read([CallBegin(0, "f"), CallArguments(0, text)]) + reader.finish()
        assert [call["function"]["arguments"] for content in found for call in content.calls] == [
            {"INVALID_JSON": text} if text else {}
        ]


async def test_an_error_before_the_first_token_has_its_status(peer):
    assert error_of(await chat(peer, "crash"), 500)
    assert error_of(await chat(peer, "crash", stream=False), 500)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the engine's thread has no event for it
            await asyncio.sleep(0.01)


async def test_an_error_in_the_stream_is_its_last_line(peer):
    streaming = asyncio.create_task(chat(peer, "slow-loop:x"))
    await until(lambda: peer.engine.num_generated > 1)
    await chat(peer, "crash")
    *parts, last = lines(await streaming)
    assert set(last) == {"error"}
    assert parts
    assert all(part["done"] is False for part in parts)


async def test_silence_is_filled_with_lines_that_add_nothing():
    settings = ServerSettings(first_byte_wait_s=0.01, ping_interval_s=0.05)
    async with peer_app(settings=settings) as http:
        told = lines(await chat(http, "hang say:x"))
    assert told[0]["message"]["content"] == ""
    assert len(told) > 3
    assert "".join(line["message"]["content"] for line in told) == "x"


async def test_messages_that_a_template_refuses_are_a_400(peer):
    assert "refuses" in error_of(await chat(peer, "refuse-me"))


async def test_a_full_server_says_so_with_retry_after():
    async with peer_app(settings=ServerSettings(max_open_requests=1)) as http:
        open_one = asyncio.create_task(chat(http, "slow-loop:x"))
        await until(lambda: http.engine.num_generated > 0)
        response = await chat(http, "say:x")
        assert response.headers["retry-after"]
        assert "limit is 1" in error_of(response, 429)
        open_one.cancel()
