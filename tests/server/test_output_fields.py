"""What clients ask of an answer's form, in every dialect of OpenAI's API, reaches the engine as a grammar."""

from __future__ import annotations

import asyncio
import json

import pytest
from test_openai_routes import until

from caudal.server import conversation
from caudal.tools.formats import AnswerFormat
from caudal.tools.parts import PlainParser

pytestmark = pytest.mark.usefixtures("tests_importable")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
MESSAGES = [{"role": "user", "content": "say:hi"}]


async def post(http, path="/chat/completions", **fields):
    body = {"messages": MESSAGES} if "chat" in path else {"prompt": "say:hi"}
    return await http.post(path, json={**body, **fields})


def member(http):
    """The first part of the grammar that the engine got last."""
    return json.loads(http.engine.grammars[-1])["grammars"][0]


ASKED = {
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "strict": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    },
    "llama.cpp's json_object": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "structured_outputs": {"structured_outputs": {"json": SCHEMA, "regex": None}},
    "as text": {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    "guided_json": {"guided_json": SCHEMA},
    "guided_json as text": {"guided_json": json.dumps(SCHEMA)},
    "llama.cpp's json_schema": {"json_schema": SCHEMA},
}


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", ASKED)
async def test_a_schema_reaches_the_engine(http, path, name):
    answer = await post(http, path, **ASKED[name])
    assert answer.status_code == 200, answer.text
    schema = member(http)["json_schema"]
    assert {key: schema[key] for key in SCHEMA} == SCHEMA
    assert schema["x-guidance"]["lenient"] is (name != "strict")
    assert http.engine.vocabulary.tokens[65] == b"A"
    assert http.engine.vocabulary.special_ids == [256, 257, 258, 259]
    assert http.engine.vocabulary.eos_token_ids == [257]


@pytest.mark.parametrize(
    ("fields", "lark"),
    [
        ({"guided_regex": "[0-9]/x"}, r"start: /[0-9]\/x/"),
        ({"structured_outputs": {"regex": "a"}}, "start: /a/"),
        ({"guided_choice": ["a", 'b"']}, 'start: CHOICE\nCHOICE: "a" | "b\\""'),
        ({"structured_outputs": {"choice": ["a"]}}, 'start: CHOICE\nCHOICE: "a"'),
        ({"grammar": 'root ::= "a"'}, '%llguidance {}\n\nstart: "a"\n'),
        ({"guided_grammar": 'root ::= "a"'}, '%llguidance {}\n\nstart: "a"\n'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, 'start: "a"'),
    ],
)
async def test_other_forms_reach_the_engine(http, fields, lark):
    answer = await post(http, **fields)
    assert answer.status_code == 200, answer.text
    assert member(http)["lark_grammar"] == lark


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "grammar": "", "guided_json": None, "structured_outputs": None},
    ],
)
async def test_what_asks_for_nothing_makes_no_grammar(http, fields):
    assert (await post(http, **fields)).status_code == 200
    assert http.engine.grammars == [""]


async def test_any_json_object(http):
    for fields in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        assert (await post(http, **fields)).status_code == 200
        assert member(http)["json_schema"]["type"] == "object"


async def test_whitespace_can_be_kept_out(http):
    assert (await post(http, structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})).status_code == 200
    assert member(http)["json_schema"]["x-guidance"]["whitespace_flexible"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {"$ref": "#"}}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"guided_json": {"type": "frog"}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"grammar": 'foo ::= "a"'}, "grammar"),
        ({"grammar": "root ::= " + "(" * 60_000}, "grammar"),
        ({"grammar": 7}, "grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "x*"}}, "structured_outputs"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "grammar"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"strict": True, "schema": {"type": "array", "uniqueItems": True}},
                }
            },
            "response_format",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_name(http, fields, param):
    answer = await post(http, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert len(error["message"]) < 600
    assert http.engine.grammars == []


async def test_a_grammar_that_takes_for_ever_stops_nobody(http):
    forever = {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}"} for n in range(20)]}
    slow = asyncio.create_task(post(http, guided_json=forever))
    quick = [await post(http) for _ in range(3)]
    assert not slow.done()
    assert (await post(http, guided_json=SCHEMA)).status_code == 200
    assert [answer.status_code for answer in quick] == [200] * 3
    refused = await slow
    assert refused.status_code == 400
    assert "make it simpler" in refused.json()["error"]["message"]


async def test_a_client_that_leaves_while_its_grammar_is_tried(http):
    forever = {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}"} for n in range(21)]}
    task = asyncio.create_task(post(http, guided_json=forever))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await post(http, guided_json=SCHEMA)).status_code == 200
    await until(lambda: http.engine_client.num_open == 0)


async def test_many_schemas_at_once(http):
    schemas = [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(32)]
    answers = await asyncio.gather(*(post(http, guided_json=schema) for schema in schemas))
    assert [answer.status_code for answer in answers] == [200] * 32
    found = [json.loads(grammar)["grammars"][0]["json_schema"]["properties"] for grammar in http.engine.grammars]
    assert sorted(map(str, found)) == sorted(str(schema["properties"]) for schema in schemas)


async def test_checks_that_cannot_begin_are_told(http, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    answer = await post(http, guided_json=SCHEMA)
    assert answer.status_code == 503
    assert "retry-after" in answer.headers


class Thinker(AnswerFormat):
    """A format with reasoning, and a grammar for calls."""

    class reasoning:
        begin, end = "<|258|>", "<|259|>"

    is_harmony = False
    markers = ("<|258|>", "<|259|>")
    asked: list[dict] = []  # noqa: RUF012 - a test empties it

    def opens_reasoning(self, prompt_tail):
        return "^" in prompt_tail

    def parser(self, **_):
        return PlainParser()

    def call_grammar(self, tools, **options):
        self.asked.append({"tools": [tool["name"] for tool in tools], **options})
        if any(tool["parameters"] == {"bad": True} for tool in tools):
            return "start: ("
        return 'start: "call"'


@pytest.fixture
def thinker(monkeypatch):
    thinker = Thinker.__new__(Thinker)
    Thinker.asked.clear()
    monkeypatch.setattr(conversation, "format_of", lambda _: thinker)
    return thinker


async def test_reasoning_comes_first(http, thinker):
    assert (await post(http, guided_choice=["a"])).status_code == 200
    first, second = json.loads(http.engine.grammars[-1])["grammars"]
    assert first["lark_grammar"].startswith("start: (thought SPACE)? @answer\n")
    assert "rest: TEXT <[259]>\nthought: <[258]> rest" in first["lark_grammar"]
    assert second["name"] == "answer"
    opened = [{"role": "user", "content": "say:hi ^"}]
    assert (await http.post("/chat/completions", json={"messages": opened, "guided_choice": ["a"]})).is_success
    assert member(http)["lark_grammar"].startswith("start: rest SPACE @answer\n")


def tool(name, **fields):
    return {"type": "function", "function": {"name": name, **fields}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [tool("f")]}, None),
        ({"tools": [tool("f")], "tool_choice": "none", "parallel_tool_calls": False}, None),
        ({"tools": [tool("f"), tool("g")], "tool_choice": "required"}, (["f", "g"], True, True)),
        (
            {
                "tools": [tool("f"), tool("g")],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
                "parallel_tool_calls": False,
            },
            (["g"], False, True),
        ),
        ({"tools": [tool("f", strict=True), tool("g")]}, (["f", "g"], True, False)),
        ({"tools": [tool("f")], "parallel_tool_calls": False}, (["f"], False, False)),
        ({"tools": [tool("f")], "response_format": {"type": "json_object"}}, (["f"], True, True)),
    ],
)
async def test_calls_are_made_certain(http, thinker, fields, expected):
    assert (await post(http, **fields)).status_code == 200
    asked = [(one["tools"], one["parallel"], one["required"]) for one in thinker.asked]
    assert asked == ([] if expected is None else [expected])
    grammar = http.engine.grammars[-1]
    assert bool(grammar) is (expected is not None)
    if "response_format" in fields:
        assert member(http)["lark_grammar"] == "start: @way0 | @way1"
    elif grammar:
        assert member(http)["lark_grammar"] == 'start: "call"'
        assert thinker.asked[0]["control_tokens"]["<|258|>"] == 258


async def test_tools_that_have_no_grammar(http, thinker):
    bad = tool("f", parameters={"bad": True})
    answer = await post(http, tools=[bad], tool_choice="required")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    strict = tool("f", parameters={"bad": True}, strict=True)
    assert (await post(http, tools=[strict])).status_code == 400
    assert (await post(http, tools=[bad], parallel_tool_calls=False)).status_code == 200
    assert http.engine.grammars == [""]
