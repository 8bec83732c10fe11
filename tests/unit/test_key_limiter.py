"""A key's limits: reserved before, settled after, never exceeded, and open-ended answers keep nobody out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rate_window import Clock

from caudal.server.keys.key import Key
from caudal.server.keys.limiter import DayUse, Limiter, Refusal, duration
from caudal.server.keys.meter import RequestMeter
from caudal.server.problems import HTTPProblem


def limiter(**today):
    clock = Clock(20_000 * 86_400.0)
    made = Limiter(clock, clock, DayUse(clock.now, today))
    made.clock = clock
    return made


def key(**fields):
    return Key(id="abcdefgh", name="k", **fields)


@pytest.mark.parametrize("name", ["requests_per_minute", "requests_per_day"])
def test_requests(name):
    limits, mine = limiter(), key(**{name: 3})
    assert [limits.begin(mine) for _ in range(3)] == [None] * 3
    refusal = limits.begin(mine)
    assert (refusal.limit_name, refusal.limit, refusal.used) == (name, 3, 3)
    limits.clock.now += refusal.retry_after_s + 0.001
    assert limits.begin(mine) is None


def test_a_refused_request_counts_nowhere():
    limits, mine = limiter(), key(requests_per_minute=1, requests_per_day=5)
    limits.begin(mine)
    for _ in range(20):
        assert limits.begin(mine).limit_name == "requests_per_minute"
    assert limits.used(mine)["requests_per_day"] == 1
    assert limits.used(mine)["max_parallel"] == 1


def test_parallel_requests():
    limits, mine = limiter(), key(max_parallel=2)
    assert limits.begin(mine) is None
    assert limits.begin(mine) is None
    assert limits.begin(mine).limit_name == "max_parallel"
    limits.end(mine)
    assert limits.begin(mine) is None


def test_the_day_goes_on_after_a_restart():
    limits, mine = limiter(abcdefgh=(5, 100)), key(requests_per_day=6, tokens_per_day=120)
    assert limits.begin(mine) is None
    assert limits.begin(mine).limit_name == "requests_per_day"
    assert isinstance(limits.reserve(mine, 10, 11, least=1, is_open=False), Refusal)
    assert limits.reserve(mine, 10, 10, least=1, is_open=False).max_tokens == 10


@pytest.mark.parametrize("days", [1, 2])
@pytest.mark.parametrize("seen_before", [False, True])
def test_what_was_used_on_another_day_does_not_count(days, seen_before):
    limits, mine = limiter(abcdefgh=(5, 100)), key(requests_per_day=6, tokens_per_day=120)
    if seen_before:
        assert limits.used(mine)["requests_per_day"] == 5
    limits.clock.now += days * 86_400.0
    assert limits.used(mine)["requests_per_day"] == limits.used(mine)["tokens_per_day"] == 0
    assert [limits.begin(mine) for _ in range(6)] == [None] * 6
    assert limits.reserve(mine, 100, 20, least=1, is_open=False).max_tokens == 20


def test_another_key_has_its_own():
    limits = limiter()
    assert limits.begin(key(requests_per_minute=1)) is None
    assert limits.begin(Key(id="other123", name="k", requests_per_minute=1)) is None


def test_tokens_are_reserved_and_settled():
    limits, mine = limiter(), key(tokens_per_minute=100)
    grant = limits.reserve(mine, 20, 60, least=1, is_open=False)
    assert limits.used(mine)["tokens_per_minute"] == 80
    assert isinstance(limits.reserve(mine, 20, 1, least=1, is_open=False), Refusal)
    grant.settle(25)
    assert limits.used(mine)["tokens_per_minute"] == 25
    assert limits.reserve(mine, 20, 55, least=1, is_open=False).max_tokens == 55


def test_what_never_fits_says_so():
    refusal = limiter().reserve(key(tokens_per_minute=100), 100, 50, least=1, is_open=False)
    assert refusal.retry_after_s == math.inf
    assert isinstance(limiter().reserve(key(tokens_per_minute=100), 50, 60, least=60, is_open=True), Refusal)


def test_an_open_ended_answer_takes_half_of_what_is_left():
    limits, mine = limiter(), key(tokens_per_minute=10_000)
    first = limits.reserve(mine, 1000, 30_000, least=1, is_open=True)
    assert first.max_tokens == 4500
    second = limits.reserve(mine, 1000, 30_000, least=1, is_open=True)
    assert second.max_tokens == 1750
    assert limits.reserve(mine, 100, 20, least=1, is_open=True).max_tokens == 20


def read(limits, mine, lengths):
    meter = RequestMeter(mine, limits, keeps_text=False)
    return meter, meter.begin_reading(lengths, list, "input")


@pytest.mark.parametrize(
    ("ends", "num_read"),
    [
        (["stop", "stop", "stop"], 60),
        (["stop", "abort", "abort"], 10),
        (["stop", None, None], 10),
        ([None, None, None], 0),
        (["stop", "stop", "error"], 0),
        (["error", "stop", None], 0),
    ],
)
def test_of_texts_without_an_answer_only_those_that_were_read_cost(ends, num_read):
    limits, mine = limiter(), key(tokens_per_minute=100)
    meter, texts = read(limits, mine, [10, 20, 30])
    assert limits.used(mine)["tokens_per_minute"] == 60
    for text, reason in zip(texts, ends, strict=True):
        if reason is not None:
            text.end(reason)
            text.end("error")  # ends are told more than once; the first counts
    meter.close()
    meter.close()
    assert meter.finish_reasons == [reason or "abort" for reason in ends]
    assert meter.usage(200).prompt_tokens == num_read
    assert limits.used(mine)["tokens_per_minute"] == num_read


def test_texts_fit_all_or_not_at_all():
    limits, mine = limiter(), key(tokens_per_minute=100)
    read(limits, mine, [60])
    for lengths, status in (([20, 21], 429), ([50, 51], 400)):
        with pytest.raises(HTTPProblem) as raised:
            read(limits, mine, lengths)
        assert raised.value.problem.status == status
    assert limits.used(mine)["tokens_per_minute"] == 60
    read(limits, mine, [20, 20])
    assert limits.used(mine)["tokens_per_minute"] == 100


@settings(deadline=None)
@given(
    limit=st.integers(1, 5000),
    asked=st.lists(
        st.tuples(st.integers(0, 600), st.integers(1, 6000), st.booleans(), st.integers(0, 30)), max_size=40
    ),
)
def test_reserved_tokens_never_exceed_the_limit(limit, asked):
    limits, mine = limiter(), key(tokens_per_minute=limit)
    for num_prompt, max_tokens, is_open, pause_s in asked:
        limits.clock.now += pause_s
        got = limits.reserve(mine, num_prompt, max_tokens, least=1, is_open=is_open)
        assert limits.used(mine)["tokens_per_minute"] <= limit
        if isinstance(got, Refusal):
            assert got.retry_after_s > 0
        else:
            assert 1 <= got.max_tokens <= max_tokens
            if not is_open and num_prompt + max_tokens <= limit:
                assert got.max_tokens == max_tokens


def test_headers():
    limits, mine = limiter(), key(requests_per_minute=5, tokens_per_day=900)
    limits.begin(mine)
    limits.reserve(mine, 100, 100, least=1, is_open=False)
    headers = limits.headers(mine)
    assert headers["x-ratelimit-limit-requests"] == "5"
    assert headers["x-ratelimit-remaining-requests"] == "4"
    assert headers["x-ratelimit-reset-requests"] == "1m1s"
    assert headers["x-ratelimit-remaining-tokens"] == "700"
    assert headers["x-ratelimit-reset-tokens"] == "24h0m0s"
    assert limits.headers(key()) == {}
    assert [duration(s) for s in (0, 0.2, 60, 3600)] == ["0s", "1s", "1m0s", "1h0m0s"]
