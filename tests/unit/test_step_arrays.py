"""Arrays that are kept from step to step hold what arrays made anew would."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.core.request import Request
from caudal.core.scheduler import Scheduler, SchedulerConfig
from caudal.core.step_plan import KVGroup
from caudal.engine.sampling_batch import RowSampling, SamplingArrays
from caudal.engine.step_batch import StepArrays
from caudal.sampling_params import SamplingParams

PARAMS = (
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.5, top_k=3),
    SamplingParams(seed=3, repetition_penalty=1.2),
    SamplingParams(seed=4, logit_bias={5: 1.0}),
    SamplingParams(seed=5, min_tokens=3),
)


def equal(kept, fresh):
    if fresh is None or kept is None:
        return kept is fresh
    for field in dataclasses.fields(fresh):
        a, b = getattr(kept, field.name), getattr(fresh, field.name)
        pairs = zip(a, b, strict=True) if isinstance(b, tuple) else [(a, b)]
        for x, y in pairs:
            if isinstance(y, np.ndarray):
                assert (x.dtype, x.shape) == (y.dtype, y.shape), field.name
                assert y.dtype != np.int32 or x.flags.c_contiguous, field.name
            np.testing.assert_array_equal(x, y, err_msg=field.name)
    return True


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 12),
            st.sampled_from([1, 1, 5, 9]),
            st.integers(1, 12),
            st.sampled_from([0, 1, 0, 1, 2, 3, 4]),
        ),
        min_size=1,
        max_size=8,
    ),
    max_num_seqs=st.sampled_from([1, 2, 8]),
    speculative=st.sampled_from([0, 3]),
    windows=st.sampled_from([(None,), (None, 6)]),
)
def test_kept_arrays_equal_fresh_ones(arrivals, max_num_seqs, speculative, windows):
    """Requests come and go, prompts are read in parts, drafts lengthen rows: every step's arrays, beside fresh ones."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=8,
            block_size=4,
            max_model_len=64,
            num_speculative_tokens=speculative,
        ),
        tuple(KVGroup(num_blocks=64, window=window) for window in windows),
    )
    params = {}

    def sampling_of(seq):
        return params[seq.request_id]

    steps, sampling = StepArrays(), SamplingArrays(sampling_of)
    for step in range(40):
        for index, (when, prompt, answer, which) in enumerate(arrivals):
            if when == step:
                name = f"r{index}"
                params[name] = RowSampling.of(PARAMS[which], (7,))
                scheduler.add(Request(request_id=name, prompt_token_ids=tuple(range(prompt)), max_tokens=answer))
        plan = scheduler.schedule()
        if plan is None:
            continue
        columns, sequences = plan.columns(), scheduler.sequences_of(plan)
        assert [seq.seq_id for seq in sequences] == list(columns.seq_id)
        token_ids = [seq.token_ids for seq in sequences]
        batch = steps.batch(plan, columns, token_ids)
        assert equal(batch, StepArrays().batch(plan, columns, token_ids))
        kept = sampling.batch(plan, columns, sequences, batch.context_lens)
        assert equal(kept, SamplingArrays(sampling_of).batch(plan, columns, sequences, batch.context_lens))
        expected = [
            row.start + row.num_tokens - len(row.draft) + ahead
            for row in plan.sampling_rows
            for ahead in range(len(row.draft) + 1)
        ]
        assert expected == ([] if kept is None else kept.positions.tolist())
        scheduler.commit(plan, [(3 * step + i) % 5 for i in range(len(expected))])


def test_a_plan_by_columns():
    scheduler = Scheduler(SchedulerConfig(block_size=4), (KVGroup(num_blocks=8),))
    for name in "ab":
        scheduler.add(Request(request_id=name, prompt_token_ids=(1, 2)))
    plan = scheduler.schedule()
    assert not plan.columns().is_decode
    scheduler.commit(plan, [1, 1])
    plan = scheduler.schedule()
    columns = plan.columns()
    assert columns.is_decode
    for index, row in enumerate(plan.rows):
        assert tuple(field[index] for field in columns) == row


@pytest.mark.parametrize("change", ["num_tokens", "num_logits", "samples"])
def test_a_row_that_does_more_or_less_is_no_decode(change):
    scheduler = Scheduler(SchedulerConfig(block_size=4), (KVGroup(num_blocks=8),))
    scheduler.add(Request(request_id="a", prompt_token_ids=(1,)))
    columns = scheduler.schedule().columns()
    assert columns.is_decode
    assert not columns._replace(**{change: (2,) if change != "samples" else (False,)}).is_decode
