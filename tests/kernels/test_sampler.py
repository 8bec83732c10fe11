"""The native sampler against its specification, on every instruction set."""

import dataclasses

import numpy as np
import pytest

from caudal.backends.base import SampleOutput, SamplingBatch
from caudal.backends.reference_sampling import sample_rows, uniform

_native = pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

NUM_ROWS = 48
PARAMETERS = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 5},
    "top_k of one": {"top_k": 1},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.6},
    "all": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.7, "frequency_penalty": 0.3},
}


def sampling_batch(vocabulary, seed, *, history=False, bias=False, num_logprobs=4, **parameters):
    random = np.random.default_rng(seed)
    n = NUM_ROWS

    def floats(name, default):
        return np.full(n, parameters.get(name, default), np.float32)

    lengths = random.integers(0, 30, n) if history else np.zeros(n, np.int64)
    biases = random.integers(0, 4, n) if bias else np.zeros(n, np.int64)
    return SamplingBatch(
        temperature=floats("temperature", 1.0),
        top_k=np.full(n, parameters.get("top_k", 0), np.int32),
        top_p=floats("top_p", 1.0),
        min_p=floats("min_p", 0.0),
        typical_p=floats("typical_p", 1.0),
        repetition_penalty=floats("repetition_penalty", 1.0),
        presence_penalty=floats("presence_penalty", 0.0),
        frequency_penalty=floats("frequency_penalty", 0.0),
        seeds=random.integers(0, 2**63, n).astype(np.uint64) * np.uint64(2) + np.uint64(1),
        positions=random.integers(0, 2**40, n),
        history_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        num_prompt=(lengths // 2).astype(np.int32),
        history_ids=random.integers(0, min(vocabulary, 40), lengths.sum()).astype(np.int32),
        bias_starts=np.concatenate([[0], np.cumsum(biases)]).astype(np.int32),
        bias_ids=random.integers(0, vocabulary, biases.sum()).astype(np.int32),
        bias_values=random.choice([5.0, -3.0, -np.inf], biases.sum()).astype(np.float32),
        num_logprobs=np.full(n, num_logprobs, np.int32),
        rows=random.permutation(n).astype(np.int32),
    )


@pytest.fixture(scope="module", params=_native.available_isas())
def sampler(request):
    return _native.Sampler(request.param, _native.ThreadPool(2))


@pytest.mark.parametrize("vocabulary", [1, 7, 320, 5003])
@pytest.mark.parametrize("name", PARAMETERS)
def test_sampler_follows_the_specification(sampler, name, vocabulary):
    logits = np.random.default_rng(vocabulary).normal(0, 3, (NUM_ROWS, vocabulary)).astype(np.float32)
    logits = np.round(logits, 2)  # makes ties
    batch = sampling_batch(
        vocabulary, 1, history=name == "penalties", bias=vocabulary > 100, num_logprobs=4, **PARAMETERS[name]
    )
    expected, found = sample_rows(logits, batch), SampleOutput(*sampler.sample(logits, batch))
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.ranks, expected.ranks)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=2e-5)
    width = min(4, vocabulary)
    np.testing.assert_array_equal(found.top_ids[:, :width], expected.top_ids[:, :width])
    np.testing.assert_allclose(found.top_logprobs[:, :width], expected.top_logprobs[:, :width], atol=2e-5)


def test_draws_have_the_right_frequencies(sampler):
    """20,000 draws from one distribution: every frequency within five standard deviations."""
    probabilities = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    logits = np.tile(np.log(probabilities).astype(np.float32), (NUM_ROWS, 1))
    counts = np.zeros(5)
    rounds = 400
    for seed in range(rounds):
        tokens = sampler.sample(logits, sampling_batch(5, seed, num_logprobs=-1))[0]
        counts += np.bincount(tokens, minlength=5)
    total = rounds * NUM_ROWS
    deviation = np.sqrt(total * probabilities * (1 - probabilities))
    assert np.all(np.abs(counts - total * probabilities) < 5 * deviation)


def test_random_numbers_are_the_specified_ones():
    for seed, position in [(0, 0), (1, 2), (2**64 - 1, 2**40), (12345, 7)]:
        assert _native.Sampler.uniform(seed, position) == uniform(seed, position)


def test_a_row_without_finite_logits_has_no_token(sampler):
    logits = np.zeros((NUM_ROWS, 10), np.float32)
    batch = sampling_batch(10, 3, temperature=0.0)
    logits[batch.rows[5]] = np.nan
    logits[batch.rows[6]] = -np.inf
    tokens = sampler.sample(logits, batch)[0]
    assert tokens[5] == tokens[6] == -1
    assert np.all(np.delete(tokens, [5, 6]) == 0)


def test_nan_counts_as_banned_wherever_it_stands(sampler):
    logits = np.random.default_rng(2).normal(0, 3, (NUM_ROWS, 100)).astype(np.float32)
    logits[:, [0, 16, 96, 99]] = np.nan
    for parameters in ({"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 5}):
        batch = sampling_batch(100, 3, num_logprobs=3, **parameters)
        found, expected = SampleOutput(*sampler.sample(logits, batch)), sample_rows(logits, batch)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        assert not np.isin(found.top_ids, [0, 16, 96, 99]).any()


@pytest.mark.parametrize("spread", [1.5, 4.0])
@pytest.mark.parametrize(
    "parameters",
    [
        *({}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_p": 0.999}, {"min_p": 1e-5}, {"min_p": 0.05}),
        *({"top_k": 40}, {"top_k": 30000}, {"top_k": 30000, "top_p": 0.9}, {"typical_p": 0.9}),
        {"top_k": 5000, "top_p": 0.9999, "min_p": 1e-6, "typical_p": 0.99},
    ],
)
def test_large_vocabularies(sampler, parameters, spread):
    """Distributions whose draw needs few candidates, and such as need nearly all."""
    logits = np.random.default_rng(6).normal(0, spread, (NUM_ROWS, 50_001)).astype(np.float32)
    batch = sampling_batch(50_001, 7, num_logprobs=-1, **parameters)
    found, expected = sampler.sample(logits, batch)[0], sample_rows(logits, batch).token_ids
    # A sum over the vocabulary in float32 may move a boundary by one part in ten million.
    assert np.count_nonzero(found != expected) <= (1 if not parameters else 0)


FLAT = {
    "whole": {},
    "hot": {"temperature": 2.5},
    "top_p": {"top_p": 0.95},
    "tiny top_p": {"top_p": 1e-9},
    "min_p": {"min_p": 1e-4},
    "top_k": {"top_k": 3000},
    "top_k of more than there are": {"top_k": 40_000},
    "typical_p": {"typical_p": 0.9},
    "tiny typical_p": {"typical_p": 1e-9},
    "all": {"temperature": 1.3, "top_k": 15_000, "top_p": 0.97, "min_p": 1e-4, "typical_p": 0.9},
    "top_p and typical_p": {"top_p": 0.9, "typical_p": 0.5},
}


def unlike_its_sample(random, shape, difference):
    """Logits that differ where the native sampler looks to guess how far a draw will reach (16 of every 64)."""
    return random.normal(0, 1, shape) + np.where(np.arange(shape[1]) % 64 < 16, difference, 0)


SHAPES = {
    "normal": lambda random, n: random.normal(0, 1, n),
    "with ties": lambda random, n: np.round(random.normal(0, 1, n), 1),
    "two values": lambda random, n: random.integers(0, 2, n),
    "likelier where it is sampled": lambda random, n: unlike_its_sample(random, n, 4),
    "likelier where it is not sampled": lambda random, n: unlike_its_sample(random, n, -4),
    "all equal": lambda _, n: np.full(n, -7.25),
    "far from zero": lambda random, n: random.normal(3000, 1, n),
    "some banned": lambda random, n: np.where(random.random(n) < 0.3, -np.inf, random.normal(0, 1, n)),
    "some that are no numbers": lambda random, n: np.where(random.random(n) < 0.3, np.nan, random.normal(0, 1, n)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FLAT)
def test_distributions_that_many_tokens_share(sampler, name, shape):
    """Where no sorting of a few decides, ranges of logits do: tokens at the edges of ranges, and equal ones."""
    logits = SHAPES[shape](np.random.default_rng(8), (NUM_ROWS, 20_011)).astype(np.float32)
    batch = sampling_batch(20_011, 9, num_logprobs=-1, **FLAT[name])
    found, expected = sampler.sample(logits, batch)[0], sample_rows(logits, batch).token_ids
    # The exponentials are float32: one draw of a hundred may fall on the neighbour of its token.
    wrong = np.flatnonzero(found != expected)
    assert len(wrong) <= 2
    for row in wrong:
        ranks = np.argsort(np.argsort(-logits[batch.rows[row]], kind="stable"))
        assert abs(ranks[found[row]] - ranks[expected[row]]) <= 2


def test_a_sharp_distribution_never_gives_an_impossible_token(sampler):
    """Two logits 29 apart in units of the temperature: the second has a probability of 3e-13."""
    logits = np.tile(np.array([29.300001, 26.4], np.float32), (NUM_ROWS, 1))
    for seed in range(3000):
        batch = sampling_batch(2, seed, temperature=0.1, num_logprobs=-1)
        assert not sampler.sample(logits, batch)[0].any()


@pytest.mark.parametrize("temperature", [0.05, 0.3, 0.7, 1.5])
def test_large_logits_at_any_temperature(sampler, temperature):
    logits = np.random.default_rng(4).normal(80, 4, (NUM_ROWS, 5003)).astype(np.float32)
    for parameters in ({}, {"top_p": 0.95}, {"min_p": 0.05}):
        batch = sampling_batch(5003, 5, temperature=temperature, num_logprobs=5, **parameters)
        found, expected = SampleOutput(*sampler.sample(logits, batch)), sample_rows(logits, batch)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-6)


def test_places_without_an_alternative_are_marked(sampler):
    logits = np.zeros((NUM_ROWS, 3), np.float32)
    batch = sampling_batch(3, 1, num_logprobs=5)
    counts = np.full(NUM_ROWS, 5, np.int32)
    counts[7] = 2
    _, _, _, top_ids, top_logprobs = sampler.sample(logits, dataclasses.replace(batch, num_logprobs=counts))
    assert top_ids[0].tolist() == [0, 1, 2, -1, -1]
    assert top_ids[7].tolist() == [0, 1, -1, -1, -1]
    assert np.all(top_logprobs[7, 2:] == -np.inf)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", np.full(NUM_ROWS, NUM_ROWS, np.int32)),
        ("bias_ids", np.array([99], np.int32)),
        ("history_starts", np.zeros(3, np.int32)),
        ("top_p", np.ones(2, np.float32)),
    ],
)
def test_inconsistent_arrays_are_refused(sampler, field, value):
    batch = dataclasses.replace(sampling_batch(10, 3), **{field: value})
    with pytest.raises(ValueError, match=r"expected|outside|row"):
        sampler.sample(np.zeros((NUM_ROWS, 10), np.float32), batch)


@pytest.mark.parametrize("maxima_at", [299, 300])
def test_maxima_that_are_not_behind_the_logits_are_refused(sampler, maxima_at):
    logits = np.zeros((NUM_ROWS, 300), np.float32)
    with pytest.raises(ValueError, match=f"maxima_at: {maxima_at} is not behind the logits"):
        sampler.sample(logits, sampling_batch(300, 0), maxima_at)


@pytest.mark.parametrize("name", PARAMETERS)
def test_known_maxima_change_nothing(sampler, name):
    """They are taken where a row's logits are as they came, and found anew where penalties or biases edit them."""
    vocabulary, num_blocks = 1100, 5
    rows = np.random.default_rng(1).normal(0, 3, (NUM_ROWS, 1104 + num_blocks)).astype(np.float32)
    rows[:, 1104:] = [[row[b : min(b + 256, vocabulary)].max() for b in range(0, vocabulary, 256)] for row in rows]
    logits = rows[:, :vocabulary]
    batch = sampling_batch(vocabulary, 1, history=name == "penalties", bias=True, **PARAMETERS[name])
    for known, found in zip(sampler.sample(logits, batch, 1104), sampler.sample(logits, batch), strict=True):
        np.testing.assert_array_equal(known, found)


def test_known_maxima_are_taken_where_no_edit_is(sampler):
    """Told that only the first block reaches the maximum, it looks nowhere else."""
    rows = np.random.default_rng(1).normal(0, 3, (NUM_ROWS, 1104 + 5)).astype(np.float32)
    rows[:, 1104] = rows[:, :256].max(axis=1)
    rows[:, 1105:] = -np.inf
    batch = sampling_batch(1100, 1, num_logprobs=-1, temperature=0.0)
    token_ids = sampler.sample(rows[:, :1100], batch, 1104)[0]
    np.testing.assert_array_equal(token_ids, rows[batch.rows, :256].argmax(axis=1))


def masks_of(vocabulary, seed):
    """Masks of every kind that a word may be: empty, full, mixed, with one token, and the row without a mask."""
    random = np.random.default_rng(seed)
    masks = random.integers(0, 2**32, (6, (vocabulary + 31) // 32), dtype=np.uint32)
    masks[1] = 0xFFFFFFFF
    masks[2] = np.where(random.random(masks.shape[1]) < 0.5, 0, 0xFFFFFFFF)
    masks[3] = 0
    masks[3, (vocabulary - 1) // 32] = 1 << ((vocabulary - 1) % 32)
    masks[4] = 0
    return masks, random.integers(-1, len(masks), NUM_ROWS).astype(np.int32)


@pytest.mark.parametrize("vocabulary", [1, 31, 33, 320, 5003])
@pytest.mark.parametrize("name", PARAMETERS)
def test_masks_follow_the_specification(sampler, name, vocabulary):
    logits = np.random.default_rng(vocabulary).normal(0, 3, (NUM_ROWS, vocabulary)).astype(np.float32)
    batch = sampling_batch(vocabulary, 1, history=name == "penalties", bias=vocabulary > 100, **PARAMETERS[name])
    masks, mask_rows = masks_of(vocabulary, 4)
    batch = dataclasses.replace(batch, masks=masks, mask_rows=mask_rows)
    expected, found = sample_rows(logits, batch), SampleOutput(*sampler.sample(logits, batch))
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=2e-5)  # of the raw logits
    for row, token_id in enumerate(found.token_ids):
        if mask_rows[row] >= 0 and token_id >= 0:
            assert masks[mask_rows[row], token_id // 32] >> (token_id % 32) & 1
    assert np.all(found.token_ids[mask_rows == 4] == -1)


def test_masks_of_another_shape_are_refused(sampler):
    logits = np.zeros((NUM_ROWS, 100), np.float32)
    batch = sampling_batch(100, 1)
    masks, mask_rows = masks_of(100, 4)
    for wrong in (
        {"masks": masks[:, :3]},
        {"mask_rows": mask_rows[1:]},
        {"mask_rows": np.full(NUM_ROWS, 6, np.int32)},
        {"mask_rows": np.full(NUM_ROWS, -2, np.int32)},
    ):
        given = {"masks": masks, "mask_rows": mask_rows, **wrong}
        with pytest.raises((ValueError, TypeError), match="mask"):
            sampler.sample(logits, dataclasses.replace(batch, **given))
