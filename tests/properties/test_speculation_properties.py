"""An engine with speculation says the same as one without, to the bit, for any mix of requests and parameters.

A tiny model with random weights on the CPU backend. A bias keeps it to a handful of tokens, or it would never repeat
itself and no draft would be right.
"""

import itertools

import pytest
from factory import tiny_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caudal.config import EngineConfig
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.engine.load import load_engine

HANDFUL = range(40, 45)
TOKENS = st.sampled_from(HANDFUL)
BIAS = dict.fromkeys(HANDFUL, 20.0)
IDS = itertools.count()


@st.composite
def params(draw):
    max_tokens = draw(st.sampled_from([1, 2, 7, 30, 60]))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 3.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 20])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        typical_p=draw(st.sampled_from([1.0, 1.0, 0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.2, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.2, -0.2])),
        logit_bias=BIAS | draw(st.dictionaries(TOKENS, st.sampled_from([19.0, 22.0, float("-inf")]), max_size=2)),
        seed=draw(st.integers(0, 2**64 - 1)),
        stop_token_ids=tuple(draw(st.sampled_from([(), (), (HANDFUL[1],), (HANDFUL[0], HANDFUL[3])]))),
        min_tokens=draw(st.integers(0, min(20, max_tokens))),
        max_tokens=max_tokens,
        logprobs=draw(st.sampled_from([None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, 2])),
    )


@st.composite
def prompts(draw):
    """A phrase, some of it repeated."""
    phrase = draw(st.lists(TOKENS, min_size=1, max_size=12))
    return (phrase * draw(st.integers(1, 6)))[draw(st.integers(0, len(phrase) - 1)) :]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Engines that differ in speculation alone, or in what must not matter either."""
    path = str(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny.gguf", tied=True))
    common = {"model_path": path, "max_model_len": 100, "num_threads": 1, "block_size": 16}
    return [
        load_engine(EngineConfig(**common, num_speculative_tokens=0)),
        load_engine(EngineConfig(**common, num_speculative_tokens=7)),
        load_engine(EngineConfig(**common, num_speculative_tokens=2, max_num_seqs=3, max_num_batched_tokens=5)),
    ]


def answers(engine, specs):
    """Everything that an engine says of requests that run together, in their order; not in which step."""
    said = {}
    for prompt, parameters in specs:
        request_id = str(next(IDS))
        said[request_id] = [[], [], None, None, None]
        engine.add_request(AddRequest(request_id=request_id, prompt_token_ids=prompt, params=parameters))
    while engine.has_work:
        for update in engine.step():
            assert update.error is None
            mine = said[update.request_id]
            mine[0] += update.token_ids
            mine[1] += update.logprobs or ()
            mine[2] = update.prompt_logprobs or mine[2]
            mine[3], mine[4] = update.finish_reason, update.stop_token_id
    return list(said.values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(prompts(), params()), min_size=1, max_size=5))
def test_on_is_off(engines, specs):
    off, *on = (answers(engine, specs) for engine in engines)
    for found in on:
        assert found == off


def test_the_tiny_model_gives_drafts_a_chance(engines):
    """Otherwise the test above would say nothing."""
    parameters = SamplingParams(temperature=0.5, seed=1, max_tokens=60, ignore_eos=True, logit_bias=BIAS)
    before = engines[1].stats()
    answers(engines[1], [([40, 41, 42 + n] * 4, parameters) for n in range(3)])
    stats = engines[1].stats()
    drafted = stats.num_draft_tokens - before.num_draft_tokens
    accepted = stats.num_accepted_tokens - before.num_accepted_tokens
    assert accepted > 10
    assert drafted > accepted + 10
