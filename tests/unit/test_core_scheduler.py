import pytest

from caudal.core.request import FinishReason, Request
from caudal.core.scheduler import Scheduler, SchedulerConfig
from caudal.core.step_plan import KVGroup
from caudal.errors import ConfigError, InvalidParameter, Overloaded, PromptTooLong


def scheduler(*groups, **config):
    return Scheduler(SchedulerConfig(**{"block_size": 4, **config}), groups or (KVGroup(100),))


def request(request_id="r", num_prompt_tokens=8, **more):
    return Request(request_id=request_id, prompt_token_ids=tuple(range(num_prompt_tokens)), **more)


def run(target, token_ids):
    """Steps until nothing is left; token_ids are sampled in turn. Returns all updates."""
    tokens, updates = iter(token_ids), []
    while (plan := target.schedule()) is not None:
        updates += target.commit(plan, [next(tokens) for _ in plan.sampling_rows])
    return updates


@pytest.mark.parametrize(
    ("more", "tokens", "answer", "reason", "stop"),
    [
        ({"max_tokens": 2}, [5, 5, 5], [5, 5], "length", None),
        ({"stop_token_ids": frozenset([7])}, [5, 7], [5, 7], "stop", 7),
        ({"stop_token_ids": frozenset([7]), "min_tokens": 2}, [7, 7, 7], [7, 7, 7], "stop", 7),
        ({"stop_token_ids": frozenset([7]), "max_tokens": 1}, [7], [7], "stop", 7),
        ({}, range(10, 20), list(range(10, 14)), "length", None),
    ],
)
def test_how_an_answer_ends(more, tokens, answer, reason, stop):
    target = scheduler(max_model_len=12)
    target.add(request(**more))
    updates = run(target, tokens)
    assert [token_id for update in updates for token_id in update.new_token_ids] == answer
    assert [update.finish_reason for update in updates] == [None] * (len(answer) - 1) + [reason]
    assert updates[-1].stop_token_id == stop


def test_what_can_never_fit_is_refused_with_numbers_and_advice():
    with pytest.raises(PromptTooLong, match=r"8 tokens.* at most 8; shorten .* larger max_model_len"):
        scheduler(max_model_len=8).add(request())
    with pytest.raises(PromptTooLong, match=r"at most 8; .* kv_cache_bytes"):
        scheduler(KVGroup(2)).add(request())
    with pytest.raises(InvalidParameter, match="no tokens"):
        scheduler().add(request(num_prompt_tokens=0))


def test_a_request_id_is_free_again_when_its_request_ended():
    target = scheduler()
    target.add(request(max_tokens=1))
    with pytest.raises(InvalidParameter, match="choose another"):
        target.add(request())
    run(target, [0])
    target.add(request())


def test_a_full_queue_refuses_and_says_when_to_come_back():
    target = scheduler(max_num_seqs=1, max_queue_len=1)
    target.add(request("a"))
    target.add(request("b"))
    with pytest.raises(Overloaded) as caught:
        target.add(request("c"))
    assert caught.value.retry_after_s > 0
    target.abort("a")
    target.add(request("c"))


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="lower the first or raise the second"):
        SchedulerConfig(max_num_seqs=9, max_num_batched_tokens=8)
    with pytest.raises(ConfigError, match="block_size is 0"):
        SchedulerConfig(block_size=0)


def test_an_abort_frees_at_once_and_commit_does_not_mind():
    target = scheduler()
    target.add(request("a"))
    target.add(request("b", 9))
    plan = target.schedule()
    seq_id = target.sequence("a").seq_id
    used = target.stats().kv_blocks_used
    update = target.abort("a")
    assert (update.finish_reason, update.new_token_ids) == (FinishReason.ABORT, ())
    assert target.stats().kv_blocks_used < used
    assert target.tokens_of(seq_id) == list(range(8))
    updates = target.commit(plan, [1] * len(plan.sampling_rows))
    assert "a" not in [update.request_id for update in updates]
    assert target.abort("a") is None
    assert target.sequence("a") is None


def test_failing_a_plan_ends_its_requests_and_no_other():
    target = scheduler(max_num_seqs=1)
    target.add(request("a"))
    target.add(request("b"))
    updates = target.fail(target.schedule())
    assert [(update.request_id, update.finish_reason) for update in updates] == [("a", "error")]
    assert [row.num_tokens for row in target.schedule().rows] == [8]


def test_prompt_logits_are_planned_once_for_each_prompt_token():
    target = scheduler(max_num_batched_tokens=4, max_num_seqs=2)
    target.add(request("warm", 8, max_tokens=1))
    run(target, [0])
    target.add(request("r", 10, wants_prompt_logits=True, max_tokens=2))
    rows = []
    while (plan := target.schedule()) is not None:
        rows += [(row.start, row.num_tokens, row.num_logits, row.samples) for row in plan.rows]
        target.commit(plan, [0] * len(plan.sampling_rows))
    assert rows == [(0, 4, 4, False), (4, 4, 4, False), (8, 2, 2, True), (10, 1, 1, True)]


def test_a_common_beginning_is_computed_once_and_reported():
    target = scheduler()
    target.add(request("a", 9, max_tokens=1))
    run(target, [0])
    target.add(request("b", 9, max_tokens=1))
    plan = target.schedule()
    assert (plan.rows[0].start, plan.rows[0].num_tokens) == (8, 1)
    assert target.commit(plan, [0])[0].num_cached_tokens == 8
    assert (target.stats().prefix_cache_queries, target.stats().prefix_cache_hits) == (18, 8)


def test_an_answer_is_found_again_by_the_next_turn():
    target = scheduler()
    target.add(request("turn 1", 6, max_tokens=7))
    run(target, range(100, 107))
    turn_2 = (*range(6), *range(100, 107), 1, 2, 3)
    target.add(Request(request_id="turn 2", prompt_token_ids=turn_2, max_tokens=1))
    assert target.schedule().rows[0].start == 12
