"""An answer's time: it begins with the first token, ends the answer once, and leaves nothing running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from caudal.messages import AddRequest, Update
from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import AnswerReader
from caudal.server.answers import Answer, Answers
from caudal.tokenizer.detokenizer import Detokenizer


class Timer:
    def __init__(self):
        self.ends = []

    def note(self, piece):
        if piece.finish_reason is not None:
            self.ends.append(piece.finish_reason)

    def end(self, reason):
        self.ends.append(reason)


@dataclass
class Client:
    """Gives updates with pauses before them; closing takes a while."""

    script: list
    close_s: float = 0.0
    closed: int = 0
    requests: list = field(default_factory=list)

    async def generate(self, request):
        self.requests.append(request)
        try:
            for pause_s, update in self.script:
                await asyncio.sleep(pause_s)
                yield update
            await asyncio.Event().wait()
        finally:
            self.closed += 1
            if self.close_s:
                await asyncio.sleep(self.close_s)


def token(byte, **more):
    return Update(request_id="r", token_ids=[byte], **more)


def answer_of(limit_s, params=None):
    detokenizer = Detokenizer({i: bytes([i]) for i in range(256)}, hidden_ids=frozenset(), prompt_ids=())
    params = params or SamplingParams()
    request = AddRequest(request_id="r", prompt_token_ids=[1], params=params)
    return Answer(request, AnswerReader(detokenizer, params), Timer(), time_limit_s=limit_s)


async def pieces_of(client, answer):
    pieces = []
    async with asyncio.timeout(10), Answers(client, [answer]) as answers:
        while (new := await answers.next()) is not None:
            pieces += [piece for _, piece in new]
    return pieces


async def test_the_time_begins_with_the_first_token():
    client = Client([(0.2, token(97)), (0.0, token(98))])
    pieces = await pieces_of(client, answer_of(0.1))
    assert "".join(piece.text for piece in pieces) == "ab"
    assert [piece.finish_reason for piece in pieces] == [None, None, "length"]
    assert client.closed == 1


async def test_without_a_limit_nothing_ends():
    client = Client([(0.0, token(97)), (0.1, token(98, finish_reason="stop"))])
    answer = answer_of(None)
    pieces = await pieces_of(client, answer)
    assert (pieces[-1].finish_reason, answer.timer.ends) == ("stop", ["stop"])


async def test_what_was_held_back_comes_with_the_end():
    client = Client([(0.0, token(0xC3)), (0.0, token(97)), (0.0, token(98))])
    params = SamplingParams(stop=("abX",))
    pieces = await pieces_of(client, answer_of(0.05, params))
    assert "".join(piece.text for piece in pieces) == "\ufffdab"
    assert sum(piece.num_tokens for piece in pieces) == 3
    assert [i for piece in pieces for i in piece.token_ids] == [0xC3, 97, 98]


async def test_time_that_is_up_while_an_ended_answer_is_closed_does_not_end_it_again():
    client = Client([(0.0, token(97)), (0.0, token(98, finish_reason="stop"))], close_s=0.2)
    answer = answer_of(0.05)
    pieces = await pieces_of(client, answer)
    assert [piece.finish_reason for piece in pieces] == [None, "stop"]
    assert answer.timer.ends == ["stop"]


async def test_a_timeout_of_the_engine_is_no_end_of_time():
    class Failing(Client):
        async def generate(self, request):
            self.requests.append(request)
            yield token(97)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await pieces_of(Failing([]), answer_of(5.0))


async def test_pieces_know_when_they_came():
    client = Client([(0.0, token(97)), (0.05, token(98, finish_reason="stop"))])
    first, second = await pieces_of(client, answer_of(None))
    assert second.time_s - first.time_s > 0.03
