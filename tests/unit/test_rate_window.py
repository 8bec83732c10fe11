"""Windows of granted amounts: no span of their length is ever granted more than the limit, and waiting helps."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.server.keys.rate_window import DAY_S, DayWindow, SlidingWindow, Slot

LENGTH_S = 60.0
events = st.lists(
    st.tuples(st.floats(0, 40, allow_nan=False), st.integers(1, 12), st.none() | st.integers(0, 12)), max_size=60
)


class Clock:
    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


@settings(deadline=None)
@given(events=events, limit=st.integers(1, 30))
def test_no_span_of_the_length_is_granted_more_than_the_limit(events, limit):
    clock = Clock()
    window = SlidingWindow(LENGTH_S, clock)
    granted = []
    for pause_s, amount, used in events:
        clock.now += pause_s
        if window.wait_s(amount, limit) == 0:
            grant = window.add(amount)
            granted.append([clock.now, amount])
            if used is not None and used <= amount:
                window.settle(grant, used)
                granted[-1][1] = used
        in_span = [amount for at, amount in granted if at > clock.now - LENGTH_S]
        assert sum(in_span) <= limit
        assert sum(in_span) <= window.used() <= limit


@settings(deadline=None)
@given(events=events, limit=st.integers(1, 30), asked=st.integers(1, 40))
def test_after_the_wait_it_fits_and_the_wait_is_never_longer_than_the_window(events, limit, asked):
    clock = Clock()
    window = SlidingWindow(LENGTH_S, clock)
    for pause_s, amount, _ in events:
        clock.now += pause_s
        if window.wait_s(amount, limit) == 0:
            window.add(amount)
    wait_s = window.wait_s(asked, limit)
    assert math.isinf(wait_s) == (asked > limit)
    if not math.isinf(wait_s):
        assert 0 <= wait_s <= LENGTH_S + 1
        clock.now += math.nextafter(wait_s, math.inf) + 1e-9
        assert window.wait_s(asked, limit) == 0
    clock.now += window.reset_s() + 1e-9
    assert window.used() == 0


def test_memory_is_bounded_however_many_are_granted():
    clock = Clock()
    window = SlidingWindow(LENGTH_S, clock)
    for _ in range(100_000):
        clock.now += 0.01
        window.add(1)
    assert len(window._slots) <= 62
    assert 6000 <= window.used() <= 6101


def test_what_is_settled_after_it_no_longer_counts_changes_nothing():
    clock = Clock()
    window = SlidingWindow(LENGTH_S, clock)
    old = window.add(10)
    clock.now += 100
    window.add(3)
    window.settle(old, 0)
    assert window.used() == 3


def test_a_day_ends_at_midnight_utc():
    clock = Clock(20_000 * DAY_S + 10)
    window = DayWindow(clock, Slot(20_001 * DAY_S, 4))
    grant = window.add(5)
    assert window.wait_s(2, 10) == DAY_S - 10
    assert window.wait_s(1, 10) == 0
    assert window.wait_s(11, 10) == math.inf
    clock.now += DAY_S
    assert window.used() == 0
    window.add(1)
    window.settle(grant, 0)
    assert window.used() == 1
    assert window.reset_s() == DAY_S - 10
