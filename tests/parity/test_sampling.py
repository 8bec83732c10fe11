"""The reference sampler does what reference_sampling.py says, and the CPU backend chooses the same tokens."""

import math

import numpy as np
import pytest
from parity_steps import BACKENDS, make_backend
from sampling_batches import sampling_batch

from caudal.backends.reference import ReferenceBackend
from caudal.backends.reference_sampling import uniform

each_backend = pytest.mark.parametrize("backend_name", BACKENDS)
EIGHT = np.log(np.array([[0.3, 0.05, 0.2, 0.2, 0.1, 0.08, 0.05, 0.02]], np.float32))
DRAWS = 2000


def sample(backend_name, logits, *rows):
    return make_backend(backend_name).sample(np.ascontiguousarray(logits, dtype=np.float32), sampling_batch(*rows))


def drawn(backend_name, logits, **parameters):
    """How often each token comes in DRAWS draws."""
    rows = [{"row": 0, "seeds": 11, "positions": position, **parameters} for position in range(DRAWS)]
    return np.bincount(sample(backend_name, logits, *rows).token_ids, minlength=logits.shape[1])


def support(backend_name, logits=EIGHT, **parameters):
    return set(np.flatnonzero(drawn(backend_name, logits, **parameters)).tolist())


def test_uniform_is_splitmix64():
    # First outputs of SplitMix64 from seed 1234567 (Vigna's splitmix64.c) are one mix of the states that we mix twice.
    from caudal.backends import reference_sampling as sampling  # noqa: PLC0415

    states = [(1234567 + 0x9E3779B97F4A7C15 * k) % 2**64 for k in (1, 2, 3)]
    assert [sampling._mix(s) for s in states] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert uniform(1234567, 0) == (sampling._mix(6457827717110365317) >> 40) / 2**24


def test_uniform_is_uniform_and_depends_on_seed_and_position():
    values = np.array([uniform(seed, position) for seed in range(64) for position in range(64)])
    assert len(set(values.tolist())) > 4090
    counts, _ = np.histogram(values, bins=16, range=(0, 1))
    assert ((counts - 256) ** 2 / 256).sum() < 37.7  # chi-squared, 15 degrees, p = 0.001
    assert uniform(2**64 - 1, 2**31) == uniform(-1 % 2**64, 2**31)


@each_backend
def test_greedy_takes_the_lowest_of_equals(backend_name):
    output = sample(backend_name, [[1, 5, 5, 2], [7, 7, 7, 7]], {"temperature": 0}, {"temperature": 0})
    assert output.token_ids.tolist() == [1, 0]


@each_backend
def test_draws_follow_the_distribution(backend_name):
    expected = np.exp(EIGHT[0]) * DRAWS
    assert ((drawn(backend_name, EIGHT) - expected) ** 2 / expected).sum() < 24.3  # 7 degrees, p = 0.001
    sharp = np.exp(2 * EIGHT[0]) / np.exp(2 * EIGHT[0]).sum() * DRAWS
    assert ((drawn(backend_name, EIGHT, temperature=0.5) - sharp) ** 2 / sharp).sum() < 24.3


@each_backend
@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 2}),  # 2 and 3 are equal: the lower stays
        ({"top_k": 100}, set(range(8))),
        ({"top_p": 0.29}, {0}),
        ({"top_p": 0.49}, {0, 2}),
        ({"top_p": 0.51}, {0, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.5}, {0, 2, 3}),
        ({"min_p": 0.2}, {0, 2, 3, 4, 5}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.42}, {0}),  # 0.3 of 0.7 is 0.43
        ({"top_k": 3, "top_p": 0.44}, {0, 2}),
        ({"typical_p": 1e-9}, {2}),  # entropy 1.80, surprise of 0.2: 1.61
        ({"typical_p": 0.3}, {2, 3}),
        ({"typical_p": 0.45}, {2, 3, 4}),  # 0.1: 2.30, nearer than 0.3: 1.20
        ({"typical_p": 0.75}, {0, 2, 3, 4}),
        ({"bias": {0: -math.inf, 7: -math.inf}}, {1, 2, 3, 4, 5, 6}),
        ({"bias": {4: 100.0}}, {4}),
    ],
)
def test_what_truncation_keeps(backend_name, parameters, kept):
    assert support(backend_name, **parameters) == kept


@each_backend
def test_penalties(backend_name):
    logits = np.array([[2.0, -2.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0]], np.float32)
    history = [0, 1, 0, 2, 2, 3]  # the first two are the prompt

    def greedy(**parameters):
        row = {"temperature": 0, "history": history, "num_prompt": 2, **parameters}
        return sample(backend_name, logits, row).token_ids[0]

    assert greedy() == 0
    assert greedy(repetition_penalty=4.0) == 0  # 0.5, -8, 0.25, 0.125
    assert greedy(repetition_penalty=4.0, presence_penalty=0.6) == 4
    assert greedy(presence_penalty=1.1) == 0  # 0.9, -2, -0.1, -0.6: the prompt's 1 is not counted
    assert greedy(frequency_penalty=0.2) == 0  # 1.8, -2, 0.6
    assert greedy(frequency_penalty=1.0, bias={2: 2.5}) == 2  # 1.0, -2, 1 - 2 + 2.5, -0.5
    assert greedy(frequency_penalty=2.5) == 4


@each_backend
def test_logprobs_are_of_the_raw_logits(backend_name):
    rows = [{"row": 0, "num_logprobs": 3, "bias": {7: 50.0}}, {"row": 0, "num_logprobs": 0}, {"row": 0}]
    output = sample(backend_name, EIGHT, *rows)
    assert output.token_ids[0] == 7
    assert output.logprobs[0] == pytest.approx(EIGHT[0, 7], abs=1e-5)
    assert output.ranks[0] == 8
    assert output.top_ids[0].tolist() == [0, 2, 3]
    assert output.top_logprobs[0] == pytest.approx(EIGHT[0, [0, 2, 3]], abs=1e-5)
    assert output.logprobs[1] == pytest.approx(EIGHT[0, output.token_ids[1]], abs=1e-5)


@each_backend
def test_a_row_without_a_finite_logit_gives_no_token(backend_name):
    banned = {"bias": dict.fromkeys(range(8), -math.inf), "num_logprobs": 1}
    output = sample(backend_name, np.repeat(EIGHT, 2, axis=0), {**banned, "temperature": 0}, banned)
    assert output.token_ids.tolist() == [-1, -1]


@each_backend
def test_extreme_temperatures(backend_name):
    assert support(backend_name, temperature=1e-6) <= {0}
    assert support(backend_name, temperature=100.0) == set(range(8))


@each_backend
def test_a_row_does_not_depend_on_its_neighbours(backend_name):
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((6, 64)).astype(np.float32) * 3
    rows = [{"row": 5 - i, "seeds": i, "positions": 10 * i, "top_p": 0.9} for i in range(6)]
    together = sample(backend_name, logits, *rows).token_ids.tolist()
    assert together == [int(sample(backend_name, logits, row).token_ids[0]) for row in rows]


@pytest.mark.parametrize("seed", range(4))
def test_the_cpu_backend_chooses_the_same_tokens(seed):
    rng = np.random.default_rng(seed)
    vocabulary, num_rows = 1500, 200
    logits = (rng.standard_normal((num_rows, vocabulary)) * rng.choice([0.5, 2, 5])).astype(np.float32)
    logits = np.round(logits * 8) / 8 if seed % 2 else logits  # many ties

    def random_row(index):
        history = rng.integers(0, vocabulary, rng.integers(0, 50)).tolist()
        return {
            "row": index,
            "temperature": rng.choice([0.0, 0.3, 0.8, 1.0, 2.0]),
            "top_k": rng.choice([0, 1, 20, 1000, 5000]),
            "top_p": rng.choice([1.0, 0.95, 0.3]),
            "min_p": rng.choice([0.0, 0.05, 0.5]),
            "typical_p": rng.choice([1.0, 0.9, 0.2]),
            "repetition_penalty": rng.choice([1.0, 1.3]),
            "presence_penalty": rng.choice([0.0, 0.7]),
            "frequency_penalty": rng.choice([0.0, 0.4]),
            "history": history,
            "num_prompt": len(history) // 2,
            "bias": {int(i): float(rng.normal()) for i in rng.integers(0, vocabulary, rng.integers(0, 4))},
            "seeds": rng.integers(0, 2**63),
            "positions": rng.integers(0, 10**6),
            "num_logprobs": rng.choice([-1, 0, 5]),
        }

    batch = sampling_batch(*[random_row(index) for index in range(num_rows)])
    expected = ReferenceBackend().sample(logits, batch)
    actual = make_backend("cpu").sample(logits, batch)
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    wanted = batch.num_logprobs >= 0
    assert actual.ranks[wanted].tolist() == expected.ranks[wanted].tolist()
    np.testing.assert_allclose(actual.logprobs[wanted], expected.logprobs[wanted], atol=1e-4)
    five = batch.num_logprobs == 5
    assert actual.top_ids[five].tolist() == expected.top_ids[five].tolist()
    np.testing.assert_allclose(actual.top_logprobs[five], expected.top_logprobs[five], atol=1e-4)
