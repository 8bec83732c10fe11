"""Speculation changes when tokens come, and nothing else: on and off give the same bits, whatever the request asks for.

Real SmolLM2 weights on the CPU backend. The prompts repeat themselves, and so does the model.
"""

import msgspec
import numpy as np
import pytest
from real_models import real_model

from caudal import LLM
from caudal.config import EngineConfig
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.engine.load import load_engine

PHRASE = list(range(1000, 1024))
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, logprobs=2, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=5, max_tokens=40, logprobs=2, ignore_eos=True)


def change(params, **fields):
    return msgspec.structs.replace(params, **fields)


PARAMS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "another seed": change(SAMPLED, seed=6),
    "hot": change(SAMPLED, temperature=5.0, top_k=3),
    "repetition penalty": change(GREEDY, repetition_penalty=1.3),
    "counting penalties": change(SAMPLED, frequency_penalty=0.4, presence_penalty=0.3),
    "banned token": change(GREEDY, logit_bias={PHRASE[3]: float("-inf"), PHRASE[5]: 4.0}),
    "short": change(GREEDY, max_tokens=5),
    "stop token": change(GREEDY, stop_token_ids=(PHRASE[9],)),
    "late stop token": change(GREEDY, stop_token_ids=(PHRASE[9], PHRASE[20]), min_tokens=15),
    "prompt logprobs": change(GREEDY, prompt_logprobs=1),
    "no logprobs": change(SAMPLED, logprobs=None),
}


def requests(names=PARAMS, stride=5):
    """A request for each kind of parameters, from prompts that differ where they begin."""
    return [
        AddRequest(request_id=name, prompt_token_ids=(PHRASE * 4)[stride * index % 24 :], params=PARAMS[name])
        for index, name in enumerate(names)
    ]


def engine(num_speculative_tokens, **options):
    settings = {"enable_prefix_caching": False, "num_threads": 2, "max_model_len": 256, **options}
    path = str(real_model("smollm2"))
    return load_engine(EngineConfig(model_path=path, num_speculative_tokens=num_speculative_tokens, **settings))


def answers(engine, batch, together=1):
    """Run requests, so many at a time, and return everything that was said of each but when."""
    found = {}
    waiting = list(batch)
    while waiting or engine.has_work:
        while waiting and engine.stats().num_running + engine.stats().num_waiting < together:
            engine.add_request(waiting.pop(0))
        for update in engine.step():
            assert update.error is None
            said = found.setdefault(update.request_id, [[], [], None, None, None])
            said[0] += update.token_ids
            said[1] += update.logprobs or ()
            said[2] = update.prompt_logprobs or said[2]
            said[3], said[4] = update.finish_reason, update.stop_token_id
    return found


@pytest.fixture(scope="module")
def off():
    """Every request by itself without speculation: the truth."""
    found = answers(engine(0), requests())
    assert found["short"][3] == "length"
    assert found["stop token"][3:] == ["stop", PHRASE[9]]
    assert found["late stop token"][3] == "stop"
    assert len(found["late stop token"][0]) > 15
    return found


def counts(engine):
    stats = engine.stats()
    return stats.num_draft_tokens, stats.num_accepted_tokens


@pytest.mark.parametrize("most", [1, 3, 7])
def test_alone(off, most):
    guessing = engine(most)
    assert answers(guessing, requests()) == off
    drafted, accepted = counts(guessing)
    assert accepted > 30
    assert drafted - accepted > 5


@pytest.mark.parametrize("together", [2, 3, 12])
def test_among_others(off, together):
    guessing = engine(7, max_num_batched_tokens=64, max_num_seqs=16)
    assert answers(guessing, requests(), together) == off
    assert counts(guessing)[1] > 0


def test_another_number_of_threads(off):
    assert answers(engine(7, num_threads=3), requests(), 2) == off


def test_with_the_prefix_cache(off):
    """Blocks that held wrong guesses for a while are found again, and hold what they should."""
    warm = engine(7, enable_prefix_caching=True)
    first = answers(warm, requests())
    longer = [
        AddRequest(
            request_id=name,
            prompt_token_ids=[*request.prompt_token_ids, *off[name][0]],
            params=change(GREEDY, max_tokens=8),
        )
        for name, request in zip(PARAMS, requests(), strict=True)
    ]
    hits = warm.stats().prefix_cache_hits
    again = answers(warm, longer)
    assert first == off
    assert again == answers(engine(0), longer)
    assert warm.stats().prefix_cache_hits > hits + 32 * len(longer)


def test_when_answers_push_each_other_out():
    growing = [
        AddRequest(request_id=f"{n}", prompt_token_ids=(PHRASE * 4)[n : n + 50], params=change(params, max_tokens=80))
        for n in range(0, 30, 10)
        for params in (GREEDY,)
    ]
    tight = engine(7, kv_cache_bytes=8 * 32 * 23040)
    assert answers(tight, growing, 3) == answers(engine(0), growing)
    assert tight.stats().num_preemptions > 0
    assert counts(tight)[1] > 0


def test_stop_strings_cut_an_accepted_run():
    """The answer's text, tokens and log-probabilities end where they would without speculation."""
    text = "one two three four five six seven eight nine ten, " * 3 + "one"
    found = []
    for most in (0, 7):
        with LLM(real_model("smollm2"), num_speculative_tokens=most, num_threads=2, max_model_len=256) as llm:
            params = [
                SamplingParams(temperature=0, max_tokens=60, logprobs=1, stop=stop, min_tokens=least)
                for stop, least in ((("three four",), 0), (("nine",), 0), (("six s",), 12), (("never",), 0))
            ]
            found.append([llm.generate(text, each)[0] for each in params])
            accepted = counts(llm.engine)[1]
    assert accepted > 10
    assert found[0] == found[1]
    assert [each.finish_reason for each in found[0]] == ["stop", "stop", "stop", "length"]


def test_a_row_without_a_finite_logit_fails_alone_after_the_tokens_before_it(monkeypatch):
    """The same tokens come before the error, also when a draft reached beyond the bad place."""
    found = []
    for most in (0, 7):
        target = engine(most)
        forward = target._runner.forward

        def spoiled(batch, forward=forward):
            logits = np.array(forward(batch))
            logits[batch.positions[batch.logit_rows] == 110] = np.nan
            return logits

        monkeypatch.setattr(target._runner, "forward", spoiled)
        target.add_request(requests(["greedy"])[0])
        updates = []
        while target.has_work:
            updates += target.step()
        assert updates[-1].finish_reason == "error"
        assert "not finite" in updates[-1].error
        assert updates[-1].token_ids == []
        found.append([token_id for update in updates for token_id in update.token_ids])
    assert found[0] == found[1]
    assert len(found[0]) == 111 - 96
