"""Grammars made to hurt: each is refused or works, soon, and the process that tries them is no loss."""

import json
import time
from pathlib import Path

import pytest

from caudal.constrain.checker import GrammarChecker
from caudal.constrain.output_rule import OutputRule, grammar_of

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
    checker = GrammarChecker(1000, {"<|end|>": 999, "<think>": 998}, timeout_s=2)
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
