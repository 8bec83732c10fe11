"""The vocabulary for an engine's grammars is made once, and again if that failed or nobody waited for it."""

import asyncio
import threading

import pytest

from caudal.engine.vocabulary_source import VocabularySource
from caudal.messages import AddRequest, Vocabulary
from caudal.sampling_params import SamplingParams

VOCABULARY = Vocabulary(tokens=[b"a"], special_ids=[], eos_token_ids=[0])
REQUEST = AddRequest(request_id="r", prompt_token_ids=[0], params=SamplingParams(), grammar="{}")


class Maker:
    """Makes the vocabulary, after some failures."""

    def __init__(self, num_failures=0):
        self.num_calls = 0
        self._num_failures = num_failures
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self):
        self.may_go_on.wait(10)
        self.num_calls += 1
        if self.num_calls <= self._num_failures:
            raise MemoryError
        return VOCABULARY


@pytest.mark.parametrize("num_waiting", [1, 3])
async def test_a_failure_is_not_for_ever(num_waiting):
    source, make = VocabularySource(), Maker(num_failures=2)
    source.know(make)
    for _ in range(2):
        failed = await asyncio.gather(*(source.prepare() for _ in range(num_waiting)), return_exceptions=True)
        assert [type(error) for error in failed] == [MemoryError] * num_waiting
        assert source.due(REQUEST) is None
    await source.prepare()
    assert source.due(REQUEST) == VOCABULARY
    await source.prepare()
    assert make.num_calls == 3


async def test_who_leaves_takes_nothing_from_who_waits():
    source, make = VocabularySource(), Maker()
    source.know(make)
    make.may_go_on.clear()
    leaving, staying = asyncio.create_task(source.prepare()), asyncio.create_task(source.prepare())
    await asyncio.sleep(0)
    leaving.cancel()
    make.may_go_on.set()
    await staying
    assert (source.due(REQUEST), make.num_calls) == (VOCABULARY, 1)
