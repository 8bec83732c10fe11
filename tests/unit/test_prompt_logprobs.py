"""Log-probabilities of a prompt's tokens do not depend on how, and how often, the prompt is computed."""

from __future__ import annotations

import pytest
from factory import tiny_checkpoint

from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

PROMPT = list(range(30, 70))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def start(path, chunk, prefix_caching):
    config = EngineConfig(
        model_path=path,
        num_threads=1,
        max_model_len=96,
        max_num_seqs=4,
        max_num_batched_tokens=chunk,
        enable_prefix_caching=prefix_caching,
    )
    engine = load_engine(config)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, prompt_logprobs=2)
    engine.add_request(AddRequest(request_id="a", prompt_token_ids=PROMPT, params=params))
    return engine


def scored(engine, preempt_at=()):
    """Return the entries of the prompt; before the steps given, the request loses its KV cache and starts again."""
    found, number = None, 0
    while engine.has_work:
        if number in preempt_at:
            engine._scheduler._preempt(engine._scheduler._running[-1])
        for update in engine.step():
            assert update.error is None
            found = update.prompt_logprobs or found
        number += 1
    return found


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("preempt_at", [(1,), (2,), (4,), (2, 4), (6,)])
def test_a_prompt_that_is_begun_again(path, preempt_at, prefix_caching):
    whole = scored(start(path, 64, prefix_caching))
    assert len(whole) == len(PROMPT)
    assert scored(start(path, 8, prefix_caching), preempt_at) == whole
