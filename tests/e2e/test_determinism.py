"""A request's tokens and log-probabilities are the same bits whatever else happens in the engine.

Real SmolLM2 weights on the CPU backend: batched == alone, chunked == whole, cached == cold, preempted == not,
1 thread == 2 threads, small blocks == large ones.
"""

import pytest
from real_models import real_model

from caudal.config import EngineConfig
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.engine.load import load_engine

TEXT = list(range(300, 900))
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, min_p=0.0, seed=7, max_tokens=12, logprobs=3, ignore_eos=True)


def requests():
    """Prompts from 1 to 580 tokens, some with a common beginning, greedy and sampled.

    Attention is computed in parts of 256 tokens: some prompts end before one does, and some are several parts long.
    """
    lengths = (1, 2, 5, 17, 31, 32, 33, 64, 65, 100, 150, 250, 300)
    plain = [
        AddRequest(request_id=f"plain{n}", prompt_token_ids=TEXT[n : 2 * n], params=GREEDY if n % 2 else SAMPLED)
        for n in lengths
    ]
    shared = [
        AddRequest(request_id=f"shared{n}", prompt_token_ids=TEXT[:96] + TEXT[400 + n : 400 + 2 * n], params=GREEDY)
        for n in (3, 9, 40)
    ]
    return [*plain, *shared, AddRequest(request_id="long", prompt_token_ids=TEXT[:580], params=SAMPLED)]


def engine(**options):
    settings = {"enable_prefix_caching": False, "num_threads": 2, "max_model_len": 640, **options}
    return load_engine(EngineConfig(model_path=str(real_model("smollm2")), **settings))


def answers(engine, batch):
    """Run requests together and return, for each, its tokens with their exact log-probabilities."""
    found = {request.request_id: [] for request in batch}
    for request in batch:
        engine.add_request(request)
    while engine.has_work:
        for update in engine.step():
            assert update.error is None
            for entry in update.logprobs or ():
                found[update.request_id].append(
                    (entry.token_id, entry.logprob, tuple(entry.top_ids), tuple(entry.top_logprobs))
                )
    return found


@pytest.fixture(scope="module")
def alone():
    """Every request run by itself: the truth that every other way must repeat."""
    lone = engine()
    found = {}
    for request in requests():
        found.update(answers(lone, [request]))
    assert all(len(tokens) == 12 for tokens in found.values())
    return found


def test_batched_is_alone(alone):
    assert answers(engine(), requests()) == alone


def test_batched_in_another_order_is_alone(alone):
    assert answers(engine(max_num_batched_tokens=100, max_num_seqs=7), requests()[::-1]) == alone


@pytest.mark.parametrize("budget", [15, 16, 33])
def test_chunked_is_whole(alone, budget):
    assert answers(engine(max_num_batched_tokens=budget, max_num_seqs=4), requests()) == alone


def test_cached_is_cold(alone):
    warm = engine(enable_prefix_caching=True)
    first = answers(warm, requests())
    second = answers(warm, requests())
    assert warm.stats().prefix_cache_hits > 0
    assert first == alone
    assert second == alone


def test_preempted_is_not():
    """Answers that outgrow a pool of ten blocks push each other out and come back."""
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=70, logprobs=2, ignore_eos=True)
    growing = [
        AddRequest(request_id=f"growing{n}", prompt_token_ids=TEXT[n : n + 30], params=params) for n in range(0, 90, 15)
    ]
    roomy, lone = engine(), {}
    for request in growing:
        lone.update(answers(roomy, [request]))
    tight = engine(kv_cache_bytes=10 * 32 * 23040)
    assert answers(tight, growing) == lone
    assert tight.stats().num_preemptions > 0


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(alone, threads):
    assert answers(engine(num_threads=threads), requests()) == alone


def test_small_blocks(alone):
    """Pages of 16 tokens instead of 32 change nothing either: parts of the context are the same."""
    assert answers(engine(block_size=16), requests()) == alone


def test_an_int8_cache_keeps_every_promise():
    """Alone on one thread == together, in chunks, with three threads and blocks from the prefix cache."""
    lone, found = engine(kv_cache_dtype="int8", num_threads=1), {}
    for request in requests():
        found.update(answers(lone, [request]))
    warm = engine(
        kv_cache_dtype="int8", num_threads=3, max_num_batched_tokens=33, max_num_seqs=5, enable_prefix_caching=True
    )
    assert answers(warm, requests()) == found
    assert answers(warm, requests()[::-1]) == found
    assert warm.stats().prefix_cache_hits > 0
