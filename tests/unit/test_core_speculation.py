"""Guessing tokens: where n-grams are found, how long drafts are, and who gets them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.core.ngram_drafter import LONG_MATCH, MAX_CANDIDATES, NgramDrafter
from caudal.core.request import Request
from caudal.core.scheduler import Scheduler, SchedulerConfig
from caudal.core.speculation import MAX_STEP_TOKENS, TOKEN_COST, DraftLength
from caudal.core.step_plan import KVGroup


def longest_match(token_ids):
    """Brute force: the place behind the longest earlier run that equals the last tokens, the latest of equals."""
    found = (0, -1)
    candidates = [i for i in range(2, len(token_ids)) if token_ids[i - 2 : i] == token_ids[-2:]]
    for start in candidates[: -MAX_CANDIDATES - 1 : -1]:
        length = 2
        while length < min(LONG_MATCH, start) and token_ids[start - 1 - length] == token_ids[-1 - length]:
            length += 1
        found = max(found, (length, start))
    return found[1]


@given(st.lists(st.integers(0, 2), max_size=80), st.lists(st.integers(1, 9)), st.integers(1, 9))
def test_a_draft_is_what_followed_the_longest_match(token_ids, strides, length):
    drafter = NgramDrafter()
    known = 0
    for stride in [*strides, len(token_ids)]:
        known = min(known + stride, len(token_ids))
        start = longest_match(token_ids[:known])
        expected = list(token_ids[:known])
        for place in range(start, start + length if start >= 0 else start):
            expected.append(expected[place])
        assert list(drafter.propose(token_ids[:known], length)) == expected[known:]


def test_the_longer_match_wins_over_the_later_one():
    assert NgramDrafter().propose([7, 1, 2, 3, 50, 9, 2, 3, 60, 7, 1, 2, 3], 2) == (50, 9)
    assert NgramDrafter().propose([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3], 1) == (60,)


def test_a_match_that_runs_into_the_end_repeats_itself():
    assert NgramDrafter().propose([5, 1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


@pytest.mark.parametrize("token_ids", [[], [1], [1, 1], [1, 2, 3, 4]])
def test_no_match_is_no_draft(token_ids):
    assert NgramDrafter().propose(token_ids, 5) == ()


def steps_and_cost(length, outcomes):
    """Tokens and step costs of a sequence whose guessed tokens are right as `outcomes` say."""
    num_tokens = cost = 0
    for outcome in outcomes:
        drafted = length.choose(7, TOKEN_COST)
        right = next((i for i in range(drafted) if not outcome()), drafted)
        if drafted:
            length.learn(drafted, right)
        num_tokens += 1 + right
        cost += 1 + TOKEN_COST * drafted
    return num_tokens, cost


def test_a_sequence_without_luck_costs_next_to_nothing():
    num_tokens, cost = steps_and_cost(DraftLength(), [lambda: False] * 1000)
    assert num_tokens == 1000
    assert cost < 1010


def test_a_sequence_that_repeats_gets_the_longest_drafts_soon():
    length = DraftLength()
    for _ in range(1000):
        if length.choose(7, TOKEN_COST):
            length.learn(1, 0)
    num_tokens, cost = steps_and_cost(length, [lambda: True] * 300)
    assert num_tokens / cost > 2.5
    assert length.choose(7, TOKEN_COST) == 7


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.8, 0.95])
def test_drafts_never_cost_more_than_they_bring(rate):
    source = random.Random(1)
    num_tokens, cost = steps_and_cost(DraftLength(), [lambda: source.random() < rate] * 3000)
    assert num_tokens / cost > 0.985


def test_the_same_outcomes_give_the_same_lengths():
    def lengths():
        length, source = DraftLength(), random.Random(3)
        for _ in range(500):
            drafted = length.choose(7, TOKEN_COST)
            if drafted:
                length.learn(drafted, source.randrange(drafted + 1))
            yield drafted

    assert list(lengths()) == list(lengths())


def plans(num_seqs, num_steps=12, **config):
    """Plans of sequences that always repeat their prompt's one token."""
    settings = {"num_speculative_tokens": 7, "max_num_batched_tokens": 64, "max_num_seqs": 16, **config}
    target = Scheduler(SchedulerConfig(**settings), (KVGroup(100),))
    for index in range(num_seqs):
        target.add(Request(request_id=f"r{index}", prompt_token_ids=(1, 1, 1, 1)))
    made = []
    for _ in range(num_steps):
        plan = target.schedule()
        made.append(plan)
        target.commit(plan, [1] * sum(1 + len(row.draft) for row in plan.sampling_rows))
    return made[1:], target.stats()


@pytest.mark.parametrize("num_seqs", range(1, 12))
def test_a_step_with_drafts_is_small_and_shared_evenly(num_seqs):
    made, stats = plans(num_seqs)
    drafts = [[len(row.draft) for row in plan.rows] for plan in made]
    assert all(sum(lengths) + num_seqs <= MAX_STEP_TOKENS or not any(lengths) for lengths in drafts)
    if num_seqs >= MAX_STEP_TOKENS:
        assert stats.num_draft_tokens == 0
    elif num_seqs <= 4:
        totals = [sum(lengths) for lengths in zip(*drafts, strict=True)]
        assert min(totals) > 0
        assert max(totals) <= min(totals) + len(made)
    assert stats.num_accepted_tokens == stats.num_draft_tokens


def test_drafts_keep_to_the_budget_the_config_and_zero():
    assert max(len(row.draft) for plan in plans(1)[0] for row in plan.rows) == 7
    small = plans(1, num_speculative_tokens=2)[0]
    assert max(len(row.draft) for plan in small for row in plan.rows) == 2
    tight = plans(1, max_num_batched_tokens=4, max_num_seqs=2)[0]
    assert max(plan.num_tokens for plan in tight) == 4
    off, stats = plans(1, num_speculative_tokens=0)
    assert not any(row.draft for plan in off for row in plan.rows)
    assert stats.num_drafts == 0


def test_no_drafts_beside_a_prompt():
    target = Scheduler(SchedulerConfig(num_speculative_tokens=7, max_num_batched_tokens=64), (KVGroup(100),))
    target.add(Request(request_id="old", prompt_token_ids=(1, 1, 1, 1)))
    target.commit(target.schedule(), [1])
    target.add(Request(request_id="new", prompt_token_ids=tuple(range(300))))
    for _ in range(4):
        plan = target.schedule()
        assert not any(row.draft for row in plan.rows)
        target.commit(plan, [1] * len(plan.sampling_rows))


def test_a_token_that_cannot_be_chosen_ends_the_sequence_after_those_before_it():
    target = Scheduler(SchedulerConfig(num_speculative_tokens=7), (KVGroup(100),))
    target.add(Request(request_id="r", prompt_token_ids=(1, 1, 1, 1)))
    target.commit(target.schedule(), [1])
    plan = target.schedule()
    assert plan.rows[0].draft[:2] == (1, 1)
    (update,) = target.commit(plan, [1, -1] + [1] * (len(plan.rows[0].draft) - 1))
    assert update.new_token_ids == (1,)
    assert update.finish_reason == "error"
    assert not target.has_work
