"""Who stays in memory and who leaves, for any models and any memory."""

from __future__ import annotations

import contextlib
import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.errors import InvalidParameter
from caudal.server.residency import FOREVER, Resident, expired, next_expiry_s, read_keep_alive, who_leaves

TIMES = st.integers(0, 50).map(float)


@st.composite
def crowds(draw):
    facts = draw(
        st.lists(st.tuples(st.integers(0, 10), st.booleans(), TIMES, TIMES | st.just(FOREVER)), max_size=6)
    )  # fmt: skip
    return [
        Resident(name=f"m{i}", held_bytes=held, in_use=used, last_used_s=last, keep_alive_s=keep)
        for i, (held, used, last, keep) in enumerate(facts)
    ]


def has_room(residents, leaving, needed, free, max_loaded):
    """What who_leaves promises, said without its algorithm."""
    staying = [each for each in residents if each.name not in leaving]
    if not staying:
        return True
    gained = sum(each.held_bytes for each in residents if each.name in leaving)
    return free + gained >= needed and (max_loaded is None or len(staying) < max_loaded)


QUESTIONS = (crowds(), st.integers(0, 30), st.integers(0, 30), st.none() | st.integers(1, 6))


@given(*QUESTIONS)
def test_a_model_in_use_never_leaves(residents, needed, free, max_loaded):
    leaving = who_leaves(residents, needed, free, max_loaded) or ()
    assert not [each.name for each in residents if each.in_use and each.name in leaving]


@given(*QUESTIONS)
def test_none_means_that_no_choice_makes_room(residents, needed, free, max_loaded):
    leaving = who_leaves(residents, needed, free, max_loaded)
    idle = [each.name for each in residents if not each.in_use]
    choices = [set(c) for n in range(len(idle) + 1) for c in combinations(idle, n)]
    if leaving is None:
        assert not any(has_room(residents, choice, needed, free, max_loaded) for choice in choices)
    else:
        assert has_room(residents, set(leaving), needed, free, max_loaded)


@given(*QUESTIONS)
def test_nobody_leaves_in_vain(residents, needed, free, max_loaded):
    leaving = who_leaves(residents, needed, free, max_loaded) or ()
    for name in leaving:
        assert not has_room(residents, set(leaving) - {name}, needed, free, max_loaded)


@given(*QUESTIONS)
def test_with_equal_sizes_the_least_recently_used_leave(residents, needed, free, max_loaded):
    equal = [Resident(name=r.name, held_bytes=3, in_use=r.in_use, last_used_s=r.last_used_s, keep_alive_s=0) for r in residents]  # fmt: skip # noqa: E501
    leaving = who_leaves(equal, needed, free, max_loaded) or ()
    left = [each.last_used_s for each in equal if each.name in leaving]
    stay = [each.last_used_s for each in equal if each.name not in leaving and not each.in_use]
    assert not left or not stay or max(left) <= min(stay)


@given(crowds(), TIMES)
def test_nothing_expires_before_the_next_expiry(residents, now):
    due = next_expiry_s(residents)
    assert bool(expired(residents, now)) == (due <= now)
    assert not [each for each in residents if each.in_use and each.name in expired(residents, now)]


def test_keep_alive_decides_when_an_idle_model_leaves():
    def one(keep_alive_s, *, in_use=False):
        return [Resident(name="a", held_bytes=1, in_use=in_use, last_used_s=10.0, keep_alive_s=keep_alive_s)]

    assert expired(one(5.0), 14.9) == []
    assert expired(one(5.0), 15.0) == ["a"]
    assert expired(one(0.0), 10.0) == ["a"]
    assert expired(one(0.0, in_use=True), 99.0) == []
    assert expired(one(FOREVER), 1e12) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300), ("1h30m", 5400), ("90s", 90), ("0", 0), ("0s", 0), ("-1", FOREVER), ("-1m", FOREVER),
        (-1, FOREVER),
        (30, 30), (0, 0), (2.5, 2.5), ("1.5h", 5400), ("100ms", 0.1), (" 10 ", 10), ("24h", 86400), ("5M", 300),
    ],
)  # fmt: skip
def test_durations(text, seconds):
    assert read_keep_alive(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "five", "5m3", "1h-3m", math.nan, "nan", "inf", "٣m"])
def test_what_is_no_duration_is_refused_by_name(text):
    with pytest.raises(InvalidParameter, match=r"keep_alive is .*; expected seconds"):
        read_keep_alive(text)


@given(st.text())
def test_any_text_is_a_duration_or_refused(text):
    with contextlib.suppress(InvalidParameter):
        assert read_keep_alive(text) >= 0
