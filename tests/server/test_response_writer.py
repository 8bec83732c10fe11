"""Streams and whole bodies of /v1/responses say the same, whatever the answer is and however it is cut."""

from __future__ import annotations

import json

import pytest
from drawn_pieces import pieces, sse_events
from hypothesis import given
from hypothesis import strategies as st

from caudal.messages import TokenLogprobs
from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import Piece
from caudal.server.openai.chat_protocol import TokenLogprob
from caudal.server.problems import Problem
from caudal.server.responses.fields import new_response
from caudal.server.responses.output import Output
from caudal.server.responses.request_protocol import ResponsesBody
from caudal.server.responses.response_writer import ResponseWriter
from caudal.server.responses.tools import tools_of
from caudal.server.sealed_reasoning import unseal
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

TOOLS = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "ns", "description": "", "tools": [{"type": "function", "name": "inner"}]},
]
NAMES = ("f", "patch", "inner", "unknown")


def writer(*, as_summary=False, is_sealed=False, **fields):
    body = ResponsesBody(model="m", input="x", tools=TOOLS)
    tools = tools_of(TOOLS)
    output = Output(tools.names, as_summary=as_summary, is_sealed=is_sealed)
    return ResponseWriter(new_response(body, tools, SamplingParams()), output, num_prompt_tokens=7, **fields)


def stream_of(given, **fields):
    made = writer(**fields)
    return sse_events(made.begin() + b"".join(made.events(0, piece) for piece in given) + made.end())


def assembled(events):
    """Put a stream together as OpenAI's clients do, checking the order of its events."""
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    items = []
    done = 0
    for name, data in events[2:-1]:
        kind = name.removeprefix("response.")
        assert data["output_index"] == len(items) - (kind != "output_item.added")
        if kind == "output_item.added":
            assert done == len(items)
            assert data["item"]["status"] == "in_progress"
            items.append({"item": data["item"], "text": ""})
            continue
        item = items[-1]
        if kind == "output_item.done":
            done += 1
            item["item"] = data["item"]
            continue
        assert data["item_id"] == item["item"]["id"]
        if kind.endswith(".delta"):
            item["text"] += data["delta"]
        elif kind.endswith(("text.done", "arguments.done", "input.done")):
            ended = next(data[key] for key in ("text", "arguments", "input") if key in data)
            assert ended == (item["text"] or ("{}" if kind.endswith("arguments.done") else ""))
    assert done == len(items)
    return [item["item"] for item in items], events[-1][1]["response"]


def plain(items):
    """Items without what is made up anew for each answer."""
    ids = ("id", "call_id")
    return [{key: value for key, value in item.items() if key not in ids} for item in items]


@given(given=pieces(names=NAMES), as_summary=st.booleans(), is_sealed=st.booleans())
def test_stream_equals_whole(given, as_summary, is_sealed):
    fields = {"as_summary": as_summary, "is_sealed": is_sealed}
    whole = json.loads(writer(**fields).body([(0, piece) for piece in given]))
    items, last = assembled(stream_of(given, **fields))
    assert last["output"] == items
    assert plain(items) == plain(whole["output"])
    for name in ("status", "usage", "incomplete_details"):
        assert last[name] == whole[name]


@given(given=pieces(names=NAMES), as_summary=st.booleans())
def test_nothing_is_lost(given, as_summary):
    whole = json.loads(writer(as_summary=as_summary, is_sealed=True).body([(0, piece) for piece in given]))
    parts = [part for piece in given for part in piece.parts]
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    assert "".join(i["content"][0]["text"] for i in whole["output"] if i["type"] == "message") == text
    thoughts = [item for item in whole["output"] if item["type"] == "reasoning"]
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    assert "".join(unseal(item["encrypted_content"]) for item in thoughts) == reasoning
    assert "".join(item["summary" if as_summary else "content"][0]["text"] for item in thoughts) == reasoning
    called = [part.name for part in parts if isinstance(part, CallBegin)]
    assert [item["name"] for item in whole["output"] if "name" in item] == called


def test_calls_are_told_in_the_words_of_their_tools():
    parts = [
        CallBegin(0, "patch"),
        CallArguments(0, '{"inp'),
        CallArguments(0, 'ut": "a\\nb"}'),
        CallBegin(1, "inner"),
        CallArguments(1, "{}"),
        CallBegin(2, "patch"),
        CallArguments(2, "no JSON"),
    ]
    items = json.loads(writer().body([(0, Piece(parts=parts, finish_reason="stop"))]))["output"]
    assert items[0]["type"] == "custom_tool_call"
    assert items[0]["input"] == "a\nb"
    assert (items[1]["type"], items[1]["name"], items[1]["namespace"]) == ("function_call", "inner", "ns")
    assert items[2]["input"] == "no JSON"
    assert [item["call_id"][:5] for item in items] == ["call_"] * 3


def test_an_answer_cut_short_is_incomplete():
    given = [(0, Piece(parts=[ReasoningPart("a"), TextPart("b")], num_tokens=2, finish_reason="length"))]
    whole = json.loads(writer().body(given))
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert stream_of([given[0][1]])[-1][0] == "response.incomplete"


def test_an_empty_answer_has_an_empty_message():
    (item,) = json.loads(writer().body([(0, Piece(finish_reason="stop"))]))["output"]
    assert item["content"][0]["text"] == ""


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (Problem(status=400, message="m", code="context_length_exceeded"), "context_length_exceeded"),
        (Problem(status=400, message="m", code="invalid_value"), "invalid_prompt"),
        (Problem(status=429, message="m"), "rate_limit_exceeded"),
        (Problem(status=500, message="m"), "server_error"),
    ],
)
def test_failures_have_codes(problem, code):
    made = writer()
    ((name, data),) = sse_events(made.failure(problem))
    assert name == "response.failed"
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"] == {"code": code, "message": "m"}


def test_the_end_is_told_once_to_whoever_keeps_it():
    told = []
    made = writer(ended=told.append)
    made.events(0, Piece(parts=[TextPart("a")], finish_reason="stop"))
    assert told == []
    made.end()
    assert [response.status for response in told] == ["completed"]


def test_a_cancelled_response_has_what_there_was():
    told = []
    made = writer(ended=told.append)
    made.events(0, Piece(parts=[ReasoningPart("a"), TextPart("b")]))
    made.cancel()
    assert [item.status for item in told[0].output] == ["completed", "incomplete"]
    assert told[0].output[1].content[0].text == "b"
    assert told[0].status == "cancelled"


def test_log_probabilities_come_with_the_text_only():
    def labels(entry):
        return TokenLogprob(str(entry.token_id), -1.0, [], [])

    def entry(i):
        return TokenLogprobs(i, -1.0, 1, [], [])

    given = [
        Piece(parts=[ReasoningPart("a")], logprobs=[entry(1)]),
        Piece(parts=[TextPart("b")], logprobs=[entry(2)]),
        Piece(logprobs=[entry(3)]),
        Piece(parts=[TextPart("c")], logprobs=[entry(4)]),
        Piece(logprobs=[entry(5)], finish_reason="stop"),
    ]
    items = json.loads(writer(labels=labels).body([(0, piece) for piece in given]))["output"]
    assert [one["token"] for one in items[1]["content"][0]["logprobs"]] == ["2", "3", "4", "5"]
    deltas = [data for name, data in stream_of(given, labels=labels) if name == "response.output_text.delta"]
    assert [[one["token"] for one in data["logprobs"]] for data in deltas] == [["2"], ["3", "4"], ["5"]]
