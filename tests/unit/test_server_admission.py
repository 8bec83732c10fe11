"""Places for open answers: never too many, and never all of them one key's."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.errors import InvalidParameter, Overloaded
from caudal.server.admission import Admission


@settings(deadline=None)
@given(
    max_open=st.integers(1, 20),
    requests=st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 12), st.booleans()), max_size=60),
)
def test_no_key_ever_has_more_than_half(max_open, requests):
    admission = Admission(max_open)
    open_of = {"a": [], "b": [], "c": []}
    for tenant, num_answers, leaves in requests:
        if leaves and open_of[tenant]:
            open_of[tenant].pop()[0].close()
            continue
        stack = ExitStack()
        try:
            stack.enter_context(admission.admit(num_answers, tenant))
        except (InvalidParameter, Overloaded):
            continue
        open_of[tenant].append((stack, num_answers))
        counts = {name: sum(n for _, n in opened) for name, opened in open_of.items()}
        assert sum(counts.values()) == admission.num_open <= max_open
        assert counts[tenant] <= -(-max_open // 2)
    for opened in open_of.values():
        for stack, _ in opened:
            stack.close()
    assert admission.num_open == 0
    assert not admission._by_tenant


def fill(admission, tenant, stack):
    count = 0
    while True:
        try:
            stack.enter_context(admission.admit(1, tenant))
        except Overloaded:
            return count
        count += 1


def test_alone_half_then_a_half_of_the_rest():
    admission = Admission(100)
    with ExitStack() as stack:
        assert fill(admission, "a", stack) == 50
        assert fill(admission, "b", stack) == 25
        assert fill(admission, "c", stack) == 12
        with admission.admit(10, "d"):
            pass


def test_without_keys_all_places_are_anybodys():
    admission = Admission(7)
    with ExitStack() as stack:
        assert fill(admission, "", stack) == 7
    with admission.admit(7):
        pass
    with pytest.raises(InvalidParameter, match="at most 4"), admission.admit(5, "a"):
        pass
