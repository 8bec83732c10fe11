"""Streams and whole bodies of /v1/messages say the same, whatever the answer is and however it is cut."""

from __future__ import annotations

import json

import pytest
from drawn_pieces import pieces, sse_events
from hypothesis import given
from hypothesis import strategies as st

from caudal.server.answer_reader import Piece
from caudal.server.anthropic.message_writer import MessageWriter
from caudal.server.problems import Problem
from caudal.server.sealed_reasoning import unseal
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart


def writer(**fields):
    return MessageWriter("msg_1", "m", num_prompt_tokens=7, **fields)


def stream_of(given, **fields):
    made = writer(**fields)
    data = made.begin() + b"".join(made.events(0, piece) for piece in given) + made.end()
    return sse_events(data)


def assembled(events):
    """Put a stream together as Anthropic's clients do, checking the order of its events."""
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    message = events[0][1]["message"]
    assert events[0][0] == "message_start"
    assert message["content"] == []
    assert message["stop_reason"] is None
    opened = None
    inputs = {}
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert opened is None
            assert data["index"] == len(message["content"])
            opened = data["index"]
            message["content"].append(data["content_block"])
            continue
        assert data["index"] == opened
        block = message["content"][opened]
        if name == "content_block_stop":
            opened = None
            if block["type"] == "thinking":
                assert block["signature"]
            continue
        delta = data["delta"]
        key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(delta["type"])
        if key is not None:
            block[key] += delta[key]
        else:
            inputs[opened] = inputs.get(opened, "") + delta["partial_json"]
    assert opened is None
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    message.update(events[-2][1]["delta"])
    message["usage"].update(events[-2][1]["usage"])
    return message


def without_ids(message):
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return message


@given(given=pieces(), hides=st.booleans(), ends=st.booleans())
def test_stream_equals_whole(given, hides, ends):
    fields = {"hides_thinking": hides, "ends_with_context": ends}
    whole = json.loads(writer(**fields).body([(0, piece) for piece in given]))
    streamed = assembled(stream_of(given, **fields))
    assert without_ids(streamed) == without_ids(whole)


@given(given=pieces(), hides=st.booleans())
def test_nothing_is_lost(given, hides):
    whole = json.loads(writer(hides_thinking=hides).body([(0, piece) for piece in given]))
    parts = [part for piece in given for part in piece.parts]
    blocks = whole["content"]
    assert "".join(b["text"] for b in blocks if b["type"] == "text") == "".join(
        part.text for part in parts if isinstance(part, TextPart)
    )
    thinking = [unseal(b["signature"]) if hides else b["thinking"] for b in blocks if b["type"] == "thinking"]
    assert "".join(thinking) == "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    called = [part.name for part in parts if isinstance(part, CallBegin)]
    assert [b["name"] for b in blocks if b["type"] == "tool_use"] == called
    assert whole["usage"]["output_tokens"] == sum(piece.num_tokens for piece in given)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (Piece(finish_reason="stop"), ("end_turn", None)),
        (Piece(finish_reason="stop", stop_reason="END"), ("stop_sequence", "END")),
        (Piece(finish_reason="stop", stop_reason=5), ("end_turn", None)),
        (Piece(finish_reason="length"), ("max_tokens", None)),
        (Piece(parts=[CallBegin(0, "f")], finish_reason="stop"), ("tool_use", None)),
        (Piece(parts=[CallBegin(0, "f")], finish_reason="length"), ("max_tokens", None)),
    ],
)
def test_stop_reasons(last, expected):
    message = json.loads(writer().body([(0, last)]))
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_an_answer_that_fills_the_context_says_so():
    message = json.loads(writer(ends_with_context=True).body([(0, Piece(finish_reason="length"))]))
    assert message["stop_reason"] == "model_context_window_exceeded"


def test_an_empty_answer_has_an_empty_block():
    message = json.loads(writer().body([(0, Piece(finish_reason="stop", num_tokens=1))]))
    assert message["content"] == [{"type": "text", "text": "", "citations": None}]


def test_a_call_that_the_answer_ends_in_keeps_its_text():
    parts = [CallBegin(0, "f"), CallArguments(0, '{"a": "b')]
    message = json.loads(writer().body([(0, Piece(parts=parts, finish_reason="length"))]))
    assert message["content"][0]["input"] == {"INVALID_JSON": '{"a": "b'}


def test_usage_tells_the_cached_part_of_the_prompt_apart():
    message = json.loads(writer().body([(0, Piece(num_cached_tokens=3, num_tokens=2, finish_reason="stop"))]))
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (4, 3, 2)


def test_thinking_tokens_are_counted():
    given = [
        Piece(parts=[ReasoningPart("a")], num_tokens=2),
        Piece(num_tokens=1),
        Piece(parts=[TextPart("b")], num_tokens=4, finish_reason="stop"),
    ]
    usage = json.loads(writer().body([(0, piece) for piece in given]))["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"]) == (7, 3)


def test_failures_and_silence_are_events():
    made = writer(request_id="req_1")
    assert sse_events(made.ping()) == [("ping", {"type": "ping"})]
    error = {"type": "api_error", "message": "it broke"}
    failure = ("error", {"type": "error", "error": error, "request_id": "req_1"})
    assert sse_events(made.failure(Problem(status=500, message="it broke"))) == [failure]
