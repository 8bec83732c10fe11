"""The scheduler, driven by random traces without a model. SCHEDULER_TRACES=20000 asks for more of them."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import scheduler_fairness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_traces import Run, make_trace

from caudal.core.step_plan import StepPlan

NUM_TRACES = int(os.environ.get("SCHEDULER_TRACES", "1500"))
NUM_CHUNKS = 10


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_random_traces(chunk):
    for seed in range(chunk * NUM_TRACES // NUM_CHUNKS, (chunk + 1) * NUM_TRACES // NUM_CHUNKS):
        try:
            Run(make_trace(random.Random(seed))).go()
        except Exception as error:
            message = f"trace {seed}: {error!r}; replay with Run(make_trace(random.Random({seed}))).go()"
            raise AssertionError(message) from error


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_traces_that_hypothesis_chooses_and_shrinks(rng):
    Run(make_trace(rng)).go()


def test_the_traces_reach_what_they_are_meant_to_reach():
    events = Counter()
    for seed in range(400):
        events.update(Run(make_trace(random.Random(seed))).go().events)
    expected = {
        "preemptions",
        "cached tokens",
        "shared blocks",
        "mixed steps",
        "paced steps",
        "short of blocks",
        "blocks out of the window",
        "abort before plan",
        "abort before compute",
        "abort before commit",
        "failure",
        "PromptTooLong",
        "Overloaded",
        "drafts",
        "right guesses",
        "wrong guesses",
        "answers that end inside a draft",
    }
    assert {event for event in expected if events[event] < 10} == set()


def test_a_trace_always_gives_the_same_plans():
    for seed in range(100):
        trace = make_trace(random.Random(seed))
        assert Run(trace).go().plans == Run(trace).go().plans


def test_plans_do_not_depend_on_the_hash_seed():
    program = (
        "import hashlib, random; from scheduler_traces import Run, make_trace; "
        "plans = [Run(make_trace(random.Random(seed))).go().plans for seed in range(60)]; "
        "print(hashlib.sha256(repr(plans).encode()).hexdigest())"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        result = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(result.stdout)
    plans = [Run(make_trace(random.Random(seed))).go().plans for seed in range(60)]
    assert digests == {hashlib.sha256(repr(plans).encode()).hexdigest() + "\n"}


def test_plans_survive_json():
    for seed in range(50):
        for text in Run(make_trace(random.Random(seed))).go().plans:
            assert StepPlan.from_json(text).to_json() == text


@pytest.mark.parametrize("scenario", scheduler_fairness.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_fairness(scenario):
    scenario()
