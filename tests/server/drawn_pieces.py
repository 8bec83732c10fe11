"""Any answer, cut into pieces anywhere: a hypothesis strategy."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from caudal.server.answer_reader import Piece
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

ALPHABET = 'ab é🎉\n"\\<{'
texts = st.text(ALPHABET, min_size=1, max_size=8)
inputs = st.dictionaries(st.text(ALPHABET, max_size=3), st.integers() | st.text(ALPHABET, max_size=3), max_size=2)


@st.composite
def answers(draw, names=("f", "g")):
    """Return the parts of an answer; a call's arguments follow its beginning."""
    parts = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=6)):
        if kind != "call":
            part = TextPart if kind == "text" else ReasoningPart
            parts += [part(text) for text in draw(st.lists(texts, min_size=1, max_size=3))]
            continue
        parts.append(CallBegin(num_calls, draw(st.sampled_from(names))))
        arguments = json.dumps(draw(inputs))
        cut = draw(st.integers(0, len(arguments)))
        parts += [CallArguments(num_calls, text) for text in (arguments[:cut], arguments[cut:]) if text]
        num_calls += 1
    return parts


@st.composite
def pieces(draw, **kinds):
    """Return an answer as pieces, the last of which says why it ended."""
    parts = draw(answers(**kinds))
    result = []
    while parts:
        size = draw(st.integers(0, len(parts)))
        result.append(Piece(parts=parts[:size], num_tokens=draw(st.integers(0, 3)), num_cached_tokens=2))
        parts = parts[size:]
        if size == 0:
            break
    last = Piece(parts=parts, num_tokens=1, finish_reason=draw(st.sampled_from(["stop", "length"])))
    if last.finish_reason == "stop" and draw(st.booleans()):
        last.stop_reason = draw(texts)
    return [*result, last]


def sse_events(data):
    """Return the events of a stream as (name, decoded data)."""
    events = []
    for block in data.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert lines[0].startswith("event: "), block
        assert lines[1].startswith("data: "), block
        assert len(lines) == 2
        events.append((lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))))
    return events
