"""Grammars made to hurt: each is refused or works, soon, and the process that tries them is no loss."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from caudal.constrain import check_worker
from caudal.constrain import checker as checking
from caudal.constrain.check_worker import CheckWorker
from caudal.constrain.checker import MAX_TRIALS, MAX_TRIALS_OF_TENANT, GrammarChecker
from caudal.constrain.output_rule import OutputRule, grammar_of
from caudal.errors import EngineUnavailable, Overloaded

pytestmark = pytest.mark.usefixtures("_importable")


@pytest.fixture(scope="module")
def _importable():
    """The process finds the sources, whether they are installed or not."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def checker(_importable):
    checker = GrammarChecker(1000, {"<|end|>": 999, "<think>": 998}, cpu_s=2)
    yield checker
    checker.close()


def rule(kind, value=None, **options):
    return grammar_of(OutputRule(kind=kind, value=value, **options))


def nested(levels):
    return '{"type":"object","properties":{"a":' * levels + '{"type":"string"}' + "}}" * levels


def forever():
    """An intersection whose emptiness llguidance looks for through 2^20 states, without a limit."""
    return rule("json_schema", {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}"} for n in range(20)]})


HOSTILE = {
    "deep schema": lambda: rule("json_schema", nested(300)),
    "huge enum": lambda: rule("json_schema", {"enum": [f"value {i}" for i in range(15_000)]}),
    "nested quantifiers": lambda: rule("regex", "(a+)+b"),
    "parentheses": lambda: rule("regex", "(" * 60_000 + "a" + ")" * 60_000),
    "parentheses in GBNF": lambda: rule("grammar", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "parentheses in Lark": lambda: rule("lark", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "recursive reference": lambda: rule("json_schema", {"$ref": "#"}),
    "no root": lambda: rule("grammar", 'foo ::= "a"'),
    "left recursion": lambda: rule("grammar", 'root ::= root "a" | "b"'),
    "ambiguity": lambda: rule("lark", 'start: s\ns: s s s | "a" | ""'),
    "huge repetition": lambda: rule("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "huge count": lambda: rule("regex", "a{1000000000}"),
    "huge array": lambda: rule("json_schema", {"type": "array", "minItems": 10**9}),
    "many properties": lambda: rule("json_schema", {"properties": {f"p{i}": {} for i in range(9000)}}),
    "long divisor": lambda: rule("json_schema", {"type": "integer", "multipleOf": 1_000_003}),
    "exponential states": lambda: rule("regex", "(.*a.{60}){5}"),
    "alternatives to the power": lambda: rule(
        "json_schema",
        {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(6)]} for i in range(10)]},
    ),
    "forever": forever,
    "no JSON inside": lambda: '{"grammars": [{"json_schema": 7}]}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_or_work_soon(checker, name):
    grammar = HOSTILE[name]()
    start_s = time.monotonic()
    result = checker.check(grammar).result(timeout=60)
    assert time.monotonic() - start_s < 30
    if result.error is None:
        assert json.loads(result.grammar)["grammars"]
    else:
        assert 0 < len(result.error) < 400
    assert checker.check(rule("json_object")).result(timeout=60).error is None


def test_what_never_ends_is_killed_and_remembered(checker):
    first = checker.check(forever()).result(timeout=60)
    assert "takes more than 2 s" in first.error
    assert checker.check(forever()).done(), "refused at once the second time"


def test_a_refusal_that_may_be_undeserved_is_not_for_ever(checker, monkeypatch):
    monkeypatch.setattr(checking, "FAILURE_KNOWN_S", 0.0)
    grammar = rule("json_schema", {"allOf": [{"type": "string", "pattern": f".*b.{{{n}}}"} for n in range(20)]})
    for _ in range(2):
        trial = checker.check(grammar)
        assert not trial.done()
        assert "takes more than 2 s" in trial.result(timeout=60).error


def test_a_busy_machine_refuses_no_good_grammar():
    """The process stands still for longer than a grammar may take, as on a machine that does something else."""
    checker = GrammarChecker(10, {}, cpu_s=0.5, timeout_s=20)
    assert checker.check(rule("json_object")).result(timeout=60).error is None
    (worker,) = checker._idle
    os.kill(worker._process.pid, signal.SIGSTOP)
    trial = checker.check(rule("regex", "a"))
    time.sleep(1)
    os.kill(worker._process.pid, signal.SIGCONT)
    assert trial.result(timeout=60).error is None
    checker.close()


def test_a_machine_that_is_too_busy_is_not_the_grammars_fault():
    checker = GrammarChecker(10, {}, timeout_s=0.2)
    assert checker.check(rule("json_object")).exception(timeout=60) is None
    (worker,) = checker._idle
    os.kill(worker._process.pid, signal.SIGSTOP)
    with pytest.raises(EngineUnavailable, match="too busy"):
        checker.check(rule("regex", "a")).result(timeout=60)
    assert worker._process.returncode is not None, "it is killed"
    assert checker.check(rule("regex", "a")).result(timeout=60).error is None
    checker.close()


def test_a_process_that_died_while_it_was_idle_is_nobodys_fault():
    checker = GrammarChecker(10, {})
    for pattern in "ab":
        assert checker.check(rule("regex", pattern)).result(timeout=60).error is None
        (worker,) = checker._idle
        worker._process.kill()
        worker._process.wait()
    assert checker.check(rule("regex", "c")).result(timeout=60).error is None
    checker.close()


def test_a_grammar_that_kills_its_process_is_refused_for_a_while(monkeypatch):
    real = CheckWorker.run
    started = []

    def dying(self, job, timeout_s):
        if "d{7}" in job.grammar:
            started.append(self)
            self._process.kill()
        return real(self, job, timeout_s)

    monkeypatch.setattr(CheckWorker, "run", dying)
    checker = GrammarChecker(10, {})
    assert checker.check(rule("regex", "a")).result(timeout=60).error is None
    assert "too much memory" in checker.check(rule("regex", "d{7}")).result(timeout=60).error
    assert len(started) == 2, "a used process is not believed"
    assert checker.check(rule("regex", "d{7}")).done()
    monkeypatch.undo()
    now_s = time.monotonic()
    monkeypatch.setattr(checking.time, "monotonic", lambda: now_s + 61)
    trial = checker.check(rule("regex", "d{7}"))
    monkeypatch.undo()
    assert trial.result(timeout=60).error is None
    checker.close()


def test_a_process_that_does_not_start_is_not_left_behind(monkeypatch):
    monkeypatch.setattr(check_worker, "_START_TIMEOUT_S", 0.0)
    begun = []
    real = check_worker.subprocess.Popen
    monkeypatch.setattr(check_worker.subprocess, "Popen", lambda *a, **k: begun.append(real(*a, **k)) or begun[-1])
    checker = GrammarChecker(10, {})
    with pytest.raises(EngineUnavailable, match="did not start"):
        checker.check(rule("regex", "a")).result(timeout=60)
    assert [process.returncode for process in begun] == [-signal.SIGKILL]
    checker.close()


@pytest.fixture
def held(monkeypatch):
    """A checker whose trials wait for an event; it is set at the end."""
    event = threading.Event()
    tried = []

    def wait(self, grammar):
        tried.append(grammar)
        event.wait(30)
        return checking._Known(checking.CheckResult(grammar=grammar))

    monkeypatch.setattr(GrammarChecker, "_try", wait)
    checker = GrammarChecker(10, {})
    yield checker, event, tried
    event.set()
    checker.close()


def test_a_key_may_have_a_few_grammars_tried_at_a_time(held):
    checker, event, _ = held
    own = [checker.check(f"{n}", "greedy") for n in range(MAX_TRIALS_OF_TENANT)]
    with pytest.raises(Overloaded, match="of this key"):
        checker.check("more", "greedy")
    again = checker.check("0", "greedy"), checker.check("0", "other")
    other = [checker.check(f"other {n}", "other") for n in range(MAX_TRIALS_OF_TENANT)]
    event.set()
    assert {answer.result(timeout=30).error for answer in (*own, *again, *other)} == {None}
    assert checker.check("more", "greedy").result(timeout=30).grammar == "more"


def test_without_keys_there_is_a_limit_as_well(held):
    checker, _, _ = held
    for n in range(MAX_TRIALS):
        checker.check(f"{n}")
    with pytest.raises(Overloaded):
        checker.check("more")


def test_what_nobody_waits_for_is_not_tried(held):
    checker, event, tried = held
    running = [checker.check(f"running {n}") for n in range(2)]
    queued = [checker.check("queued", "a"), checker.check("queued", "a")]
    queued[0].cancel()
    left = checker.check("left", "a")
    left.cancel()
    for n in range(MAX_TRIALS_OF_TENANT - 1):  # what was left does not count any more
        checker.check(f"{n}", "a")
    running[0].cancel()
    event.set()
    assert queued[1].result(timeout=30).grammar == "queued"
    assert running[1].result(timeout=30).grammar == "running 1"
    assert checker.check("running 0").result(timeout=30).grammar == "running 0"
    assert "left" not in tried


def test_those_who_wait_are_told_when_the_checker_is_closed(held):
    checker, event, _ = held
    answers = [checker.check(f"{n}") for n in range(3)]
    checker.close()
    with pytest.raises(EngineUnavailable):
        answers[2].result(timeout=30)
    event.set()
    assert [answer.result(timeout=30).error for answer in answers[:2]] == [None, None]


def test_gbnf_comes_back_as_lark(checker):
    result = checker.check(rule("grammar", 'root ::= "a"')).result(timeout=60)
    assert "lark_grammar" in json.loads(result.grammar)["grammars"][0]


def test_many_at_once(checker):
    grammars = [rule("json_schema", {"type": "object", "properties": {f"p{i}": {}}}) for i in range(40)]
    assert [f.result(timeout=60).error for f in [checker.check(g) for g in grammars]] == [None] * 40


def test_a_closed_checker_leaves_no_process():
    checker = GrammarChecker(10, {})
    assert checker.check(rule("json_object")).result(timeout=60).error is None
    (process,) = checker._idle
    checker.close()
    assert process._process.returncode is not None
