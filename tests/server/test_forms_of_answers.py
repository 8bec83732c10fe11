"""What an answer must look like, as the Messages and the Responses API say it, reaches the engine as a grammar."""

from __future__ import annotations

import json

import pytest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
NAMED = {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}


@pytest.fixture
def grammars(http):
    """The grammars that the engine gets."""
    seen = []
    add = http.engine.add_request
    http.engine.add_request = lambda request: (seen.append(request.grammar), add(request))
    return seen


async def message(http, **fields):
    body = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "say:x"}], **fields}
    return await http.post("/v1/messages", json=body)


async def response(http, **fields):
    return await http.post("/v1/responses", json={"model": "scripted", "input": "say:x", **fields})


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (message, {"output_config": {"format": FORMAT}}),
        (message, {"output_format": FORMAT}),
        (response, {"text": {"format": NAMED}}),
        (response, {"text": {"format": {"type": "json_object"}}}),
    ],
)
async def test_a_schema_becomes_a_grammar(http, grammars, ask, fields):
    await ask(http, **fields)
    (grammar,) = grammars
    wanted = {"type": "object"} if "json_object" in str(fields) else SCHEMA
    schemas = [member["json_schema"] for member in json.loads(grammar)["grammars"] if "json_schema" in member]
    assert [{key: schema[key] for key in wanted} for schema in schemas] == [wanted]


@pytest.mark.parametrize("ask", [message, response])
async def test_without_a_form_there_is_no_grammar(http, grammars, ask):
    await ask(http)
    assert grammars == [""]


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (message, {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}),
        (response, {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "tool_choice": "required"}),
    ],
)
async def test_a_call_that_must_come_is_forced(http, grammars, ask, fields):
    await ask(http, **fields)
    assert "city" in grammars[0]


@pytest.mark.parametrize("form", [{"format": NAMED}, {"format": {"type": "json_object"}, "verbosity": "low"}])
async def test_a_response_repeats_its_form(http, form):
    text = (await response(http, text=form)).json()["text"]
    for name, value in form["format"].items():
        assert text["format"][name] == value
    assert text.get("verbosity") == form.get("verbosity")


@pytest.mark.parametrize(
    ("ask", "fields", "named"),
    [
        (message, {"output_config": {"format": {"type": "regex"}}}, "output_config"),
        (message, {"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
        (message, {"output_format": {"type": "json_schema", "schema": {"type": "unicorn"}}}, "output_format"),
        (response, {"text": {"format": {"type": "regex"}}}, "text"),
        (response, {"text": {"format": {"type": "json_schema", "name": "w"}}}, "text"),
        (response, {"text": {"format": {**NAMED, "schema": {"type": "unicorn"}}}}, "text"),
    ],
)
async def test_a_form_that_makes_no_sense_is_refused_by_name(http, ask, fields, named):
    answer = await ask(http, **fields)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
