"""Stop strings are found the same way however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caudal.errors import InvalidParameter
from caudal.tokenizer.stop_strings import StopMatcher

SMALL = st.text(alphabet="abc\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=4)


def by_search(text, stop):
    """The definition: the match that ends first, of those the longest."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    if not found:
        return text, None
    end, _, best = min(found)
    return text[: end - len(best)], best


def run(pieces, stop):
    matcher = StopMatcher(stop)
    shown = ""
    for piece in pieces:
        text, found = matcher.push(piece)
        shown += text
        if found is not None:
            return shown, found
    return shown + matcher.flush(), None


@given(text=SMALL, stop=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8))
@example(text="aab", stop=["aab", "ab"], cuts=[1, 2])
@example(text="ababc", stop=["abac", "babc"], cuts=[])
def test_any_cutting_gives_the_same(text, stop, cuts):
    ends = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(ends)]
    assert run(pieces, stop) == by_search(text, stop)
    assert run(list(text), stop) == by_search(text, stop)


@given(text=SMALL, stop=STOPS)
def test_holds_back_no_more_than_it_must(text, stop):
    """What is held back is the longest end of the text that begins a stop string."""
    matcher = StopMatcher(stop)
    shown, found = matcher.push(text)
    if found is None:
        held = text[len(shown) :]
        begins = [text[i:] for i in range(len(text)) if any(s.startswith(text[i:]) for s in stop)]
        assert held == (begins[0] if begins else "")


def test_nothing_after_a_match():
    matcher = StopMatcher(["END"])
    assert matcher.push("xENDy") == ("x", "END")
    assert matcher.push("more") == ("", "END")
    assert matcher.flush() == ""


def test_empty_stop_string_is_refused():
    with pytest.raises(InvalidParameter, match="empty"):
        StopMatcher(["a", ""])


def test_long_stop_strings_cost_linear_time():
    matcher = StopMatcher(["a" * 100_000 + "b"])
    for _ in range(100):
        matcher.push("a" * 2000)
    assert matcher.push("c")[0][-3:] == "aac"
