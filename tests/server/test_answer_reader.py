from __future__ import annotations

import asyncio
import itertools
import struct
import time

import pytest
from byte_tokenizer import EOS, ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st

from caudal.engine.engine_client import ProgressWatch
from caudal.engine.framing import MAX_FRAME_BYTES, FrameBuffer, pack_frame
from caudal.engine.request_table import RequestTable, merge_updates
from caudal.errors import CaudalError, EngineDead, EngineUnavailable, InvalidParameter
from caudal.messages import AbortRequest, AddRequest, EngineStats, TokenLogprobs, Update, Updates
from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import AnswerReader

texts = st.text("aböñ🎉", max_size=20)


def updates_of(token_ids, cuts, reason):
    """Cut an answer's tokens into updates, the last with a finish_reason."""
    bounds = [0, *sorted({min(cut, len(token_ids)) for cut in cuts}), len(token_ids)]
    pieces = [token_ids[a:b] for a, b in itertools.pairwise(bounds)]
    return [
        Update(
            request_id="r",
            token_ids=ids,
            logprobs=[TokenLogprobs(i, -1.0, 1, [], []) for i in ids],
            finish_reason=reason if n == len(pieces) - 1 else None,
            stop_token_id=EOS if reason == "stop" and n == len(pieces) - 1 else None,
        )
        for n, ids in enumerate(pieces)
    ]


def read(updates, **params):
    params = SamplingParams(**params)
    reader = AnswerReader(ByteTokenizer().detokenizer(()), params)
    pieces = []
    for update in updates:
        pieces.append(reader.push(update))
        if pieces[-1].finish_reason:
            break
    return pieces


@given(
    text=texts,
    cuts=st.lists(st.integers(0, 60), max_size=6),
    stop=st.lists(st.text("abñ🎉", min_size=1, max_size=3), max_size=3),
    stopped=st.booleans(),
)
def test_cutting_into_updates_makes_no_difference_and_stop_strings_end_the_text(text, cuts, stop, stopped):
    token_ids = [*text.encode(), *([EOS] if stopped else [])]
    reason = "stop" if stopped else "length"
    pieces = read(updates_of(token_ids, cuts, reason), stop=tuple(stop))
    found = "".join(piece.text for piece in pieces)

    ends = [(text.find(s) + len(s), -len(s)) for s in stop if s in text]
    end, negative_len = min(ends, default=(len(text), 0))
    assert found == text[: end + negative_len]
    assert pieces[-1].finish_reason == ("stop" if ends else reason)
    assert sum(piece.num_tokens for piece in pieces) == (len(text[:end].encode()) if ends else len(token_ids))
    for piece in pieces:
        assert len(piece.logprobs) == len(piece.offsets) == piece.num_tokens
    offsets = [offset for piece in pieces for offset in piece.offsets]
    assert offsets == [len(text.encode()[:n].decode(errors="ignore")) for n in range(len(offsets))]


def test_stop_strings_wait_for_min_tokens():
    pieces = read(updates_of(list(b"aXbXc"), [], "length"), stop=("X",), min_tokens=3)
    assert "".join(piece.text for piece in pieces) == "aXb"


def test_errors_and_aborts_are_raised():
    reader = AnswerReader(ByteTokenizer().detokenizer(()), SamplingParams())
    with pytest.raises(CaudalError, match="no luck"):
        reader.push(Update(request_id="r", finish_reason="error", error="no luck"))
    with pytest.raises(EngineUnavailable):
        reader.push(Update(request_id="r", finish_reason="abort"))


@given(payloads=st.lists(st.binary(max_size=40), max_size=8), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_frames_survive_any_portions(payloads, cuts):
    data = b"".join(map(pack_frame, payloads))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    buffer = FrameBuffer()
    portions = (data[a:b] for a, b in itertools.pairwise(bounds))
    assert [payload for portion in portions for payload in buffer.push(portion)] == payloads


def test_a_stream_that_is_none_of_frames_is_an_error():
    with pytest.raises(ValueError, match="expected at most"):
        FrameBuffer().push(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_merging_updates_loses_nothing():
    entry = TokenLogprobs(1, -1.0, 1, [], [])
    merged = merge_updates(
        [
            Update(request_id="r", token_ids=[1], logprobs=[entry], prompt_logprobs=[None], num_cached_tokens=32),
            Update(request_id="r", token_ids=[2, 3], logprobs=[entry, entry], finish_reason="stop", stop_token_id=3),
        ]
    )
    assert merged == Update(
        request_id="r",
        token_ids=[1, 2, 3],
        logprobs=[entry] * 3,
        prompt_logprobs=[None],
        finish_reason="stop",
        stop_token_id=3,
        num_cached_tokens=32,
    )


REQUEST = AddRequest(request_id="r", prompt_token_ids=[1], params=SamplingParams())


async def test_a_request_is_sent_once_and_aborted_only_if_it_has_not_ended():
    table, sent = RequestTable(), []
    stream = table.stream(REQUEST, sent.append)
    table_news = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    table.deliver([Update(request_id="r", token_ids=[5]), Update(request_id="other", token_ids=[6])])
    assert (await table_news).token_ids == [5]
    await stream.aclose()
    assert sent == [REQUEST, AbortRequest(request_id="r")]
    assert len(table) == 0

    sent.clear()
    stream = table.stream(REQUEST, sent.append)
    last = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    table.deliver([Update(request_id="r", finish_reason="length")])
    await last
    await stream.aclose()
    assert sent == [REQUEST]


async def test_what_arrived_before_a_death_is_still_read():
    table = RequestTable()
    stream = table.stream(REQUEST, lambda _: None)
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    table.deliver([Update(request_id="r", token_ids=[5])])
    table.fail_all(EngineDead("gone"))
    assert (await first).token_ids == [5]
    with pytest.raises(EngineDead, match="gone"):
        await anext(stream)


async def test_a_request_is_not_sent_to_the_engine_that_follows_a_death():
    """The engine dies, and another has taken its place, while the request is prepared."""
    table, sent = RequestTable(), []
    is_prepared = asyncio.Event()
    stream = table.stream(REQUEST, sent.append, before=is_prepared.wait)
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    table.fail_all(EngineDead("gone"))
    is_prepared.set()
    with pytest.raises(EngineDead, match="gone"):
        await first
    assert (sent, len(table)) == ([], 0)


async def test_what_was_never_sent_is_not_aborted():
    table, sent = RequestTable(), []

    async def fail():
        raise OSError

    with pytest.raises(OSError):
        await anext(table.stream(REQUEST, sent.append, before=fail))
    assert (sent, len(table)) == ([], 0)


async def test_refusals_keep_their_class_and_parameter():
    table = RequestTable()
    stream = table.stream(REQUEST, lambda _: None)
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    refused = {"error": "bad", "error_kind": "InvalidParameter", "error_parameter": "seed"}
    table.deliver([Update(request_id="r", finish_reason="error", **refused)])
    with pytest.raises(InvalidParameter, match="bad") as raised:
        await first
    assert raised.value.parameter == "seed"


@pytest.mark.parametrize(
    ("message", "alive"),
    [
        (EngineStats(num_steps=7, busy=True), False),
        (EngineStats(num_steps=8, busy=True), True),
        (EngineStats(num_steps=7, busy=False), True),
        (Updates(updates=[]), True),
    ],
)
def test_a_busy_engine_whose_steps_stand_still_gives_no_sign_of_life(message, alive):
    watch = ProgressWatch()
    watch.note(EngineStats(num_steps=7, busy=True))
    time.sleep(0.02)
    watch.note(message)
    assert (watch.silent_s < 0.02) == alive
