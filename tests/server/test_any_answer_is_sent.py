"""Whatever a model writes, in any format, becomes valid events and bodies in every API that tells calls from text."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
from byte_tokenizer import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import Piece
from caudal.server.anthropic.message_writer import MessageWriter
from caudal.server.ollama.answer_lines import LineWriter, Told, chat_fields
from caudal.server.openai.chat import ChatWriter
from caudal.server.openai.chat_protocol import ChatRequest
from caudal.server.responses.fields import new_response
from caudal.server.responses.output import Output
from caudal.server.responses.request_protocol import ResponsesBody
from caudal.server.responses.response_writer import ResponseWriter
from caudal.server.responses.tools import tools_of
from caudal.tools.formats import AnswerFormat, format_of
from caudal.tools.parts import CallArguments
from caudal.tools.table import CALLS

MODEL = SimpleNamespace(name="m", tokenizer=ByteTokenizer())
TOOLS = [{"type": "function", "name": "f"}, {"type": "custom", "name": "patch"}]
FORMATS = {row.name: AnswerFormat(name=row.name, calls=row) for _, row in CALLS}
FORMATS["harmony"] = format_of("<|channel|><|message|>")
ESCAPES = [r"\ud83d", r"\ude00", r"\ud83d\ude00", r"\\ud83d", r"\\\\ud83d", r"\U0000d83d", r"\x80", r"\u12", "\\", '"']
SCRAPS = [
    "f",
    "patch",
    "(",
    "f(s='",
    "')",
    "call:f{",
    "to=functions.f",
    "{",
    "}",
    "s",
    ":",
    "=",
    ",",
    "1e999",
    "9" * 40,
]
WHOLE = [
    '{"name": "f%s", "arguments": {"s": "%s"}}',
    '{"name": "f", "parameters": "{\\"%s\\": \\"%s\\"}"}',
    "f(s='%s%s')",
]


def chat(num_tokens):
    body = ChatRequest(model="m", messages=[], stream=True)
    return ChatWriter("id", body, MODEL, num_prompt_tokens=num_tokens, n=1)


def responses(num_tokens):
    body, tools = ResponsesBody(model="m", input="x", tools=TOOLS), tools_of(TOOLS)
    output = Output(tools.names, as_summary=False, is_sealed=False)
    return ResponseWriter(new_response(body, tools, SamplingParams()), output, num_prompt_tokens=num_tokens)


def messages(num_tokens):
    return MessageWriter("msg_1", "m", num_prompt_tokens=num_tokens)


def ollama(num_tokens):
    told = Told(model="m", num_prompt_tokens=num_tokens, begun_s=0.0, load_s=0.0)
    return LineWriter(told, chat_fields, MODEL, num_top=None, parsed=True)


WRITERS = {writer.__name__: writer for writer in (chat, responses, messages, ollama)}


@st.composite
def texts(draw, answer_format):
    """Return an answer of this format's markers, of calls written in several ways, and of escapes anywhere."""
    escape = st.sampled_from(ESCAPES)
    call = st.tuples(st.sampled_from(WHOLE), escape, escape).map(lambda drawn: drawn[0] % drawn[1:])
    marked = st.tuples(st.sampled_from(answer_format.markers), call).map("".join)
    scrap = st.sampled_from([*answer_format.markers, *SCRAPS])
    return "".join(draw(st.lists(call | marked | scrap | escape | st.text(max_size=3), min_size=1, max_size=8)))


def pieces_of(answer_format, text, cuts):
    """Return the answer as its pieces come."""
    parser = answer_format.parser(tools=TOOLS, reasoning=True, opens_reasoning=False)
    ends = [0, *sorted(min(end, len(text)) for end in cuts), len(text)]
    pieces = [Piece(parts=parser.push(text[a:b]), num_tokens=1) for a, b in pairwise(ends)]
    return [*pieces, Piece(parts=parser.finish(), num_tokens=1, finish_reason="stop")]


def objects_in(stream):
    """Return the JSON of a stream, of events or of lines."""
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n") if not line.startswith("event: ")]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]


@pytest.mark.parametrize("api", WRITERS)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 120), max_size=4))
def test_any_answer_can_be_sent(name, api, data, cuts):
    pieces = pieces_of(FORMATS[name], data.draw(texts(FORMATS[name])), cuts)
    json.dumps(json.loads(WRITERS[api](7).body([(0, piece) for piece in pieces])), ensure_ascii=False).encode()
    writer = WRITERS[api](7)
    stream = writer.begin() + b"".join(writer.events(0, piece) for piece in pieces) + writer.end()
    json.dumps(objects_in(stream), ensure_ascii=False).encode()


@pytest.mark.parametrize("written", [r'{"city": "\ud83d"}', r'"{\"city\": \"\\ud83d\"}"', r'"{\"city\": \"\ud83d\"}"'])
def test_arguments_with_half_a_character_reach_the_tool(written):
    pieces = pieces_of(FORMATS["hermes"], f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>', [40])
    told = {"city": "\ufffd"}
    assert json.loads("".join(p.text for piece in pieces for p in piece.parts if isinstance(p, CallArguments))) == told
    body = [(0, piece) for piece in pieces]
    (call,) = json.loads(ollama(7).body(body))["message"]["tool_calls"]
    assert call["function"]["arguments"] == told
    (block,) = json.loads(messages(7).body(body))["content"]
    assert block["input"] == told


def test_a_call_that_is_cut_off_is_not_one_without_arguments():
    pieces = pieces_of(FORMATS["hermes"], '<tool_call>{"name": "f", "arguments": {"city": "Par', [])
    (call,) = json.loads(ollama(7).body([(0, piece) for piece in pieces]))["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"INVALID_JSON": '{"city":"Par'}
