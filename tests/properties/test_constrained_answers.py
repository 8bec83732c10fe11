"""Whatever a model would like to say, a finished answer obeys its schema.

The model is a tiny one with random weights, sampled hot: it wants nothing in particular. The check knows nothing of
llguidance.
"""

import json
import math
import re

import pytest
from factory import tiny_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caudal import LLM, SamplingParams
from caudal.constrain.output_rule import OutputRule

MAX_TOKENS = 120


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_checkpoint(path)
    with LLM(path, backend="reference", max_model_len=160, max_num_seqs=4, num_speculative_tokens=4) as llm:
        yield llm


def integers_between(low, high):
    return {"type": "integer", "minimum": low, "maximum": high}


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"const": {"k": [1, "é"]}}),
    st.tuples(st.integers(-50, 50), st.integers(0, 400)).map(lambda t: integers_between(t[0], t[0] + t[1])),
    st.lists(st.sampled_from(["a", "ab", "é", 'q"', "", 3, None]), min_size=1, unique=True).map(lambda v: {"enum": v}),
    st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
        lambda t: {"type": "string", "minLength": t[0], "maxLength": t[0] + t[1]}
    ),
    st.sampled_from(["^[a-c]{1,3}$", "^x(y|z)*w$"]).map(lambda p: {"type": "string", "pattern": p}),
)


def objects(children):
    names = st.lists(st.sampled_from(["name", "age", "x y", "é", 'q"']), min_size=1, max_size=3, unique=True)
    return names.flatmap(
        lambda keys: st.tuples(
            st.fixed_dictionaries(dict.fromkeys(keys, children)), st.sets(st.sampled_from(keys)), st.booleans()
        ).map(lambda t: {"type": "object", "properties": t[0], "required": sorted(t[1]), "additionalProperties": False})
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        objects(children),
        st.tuples(children, st.integers(0, 2)).map(
            lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + 1}
        ),
        st.lists(children, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=5,
)


def same(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def obeys(value, schema):  # noqa: PLR0911 - a line for each keyword
    """JSON Schema's meaning of the keywords above (draft 2020-12)."""
    if "anyOf" in schema:
        return any(obeys(value, option) for option in schema["anyOf"])
    if "const" in schema:
        return same(value, schema["const"])
    if "enum" in schema:
        return any(same(value, option) for option in schema["enum"])
    kind = schema["type"]
    if kind == "integer":
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return is_number and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        if not isinstance(value, str) or not re.search(schema.get("pattern", ""), value):
            return False
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
    if kind == "array":
        is_long_enough = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return is_long_enough and all(obeys(item, schema["items"]) for item in value)
    if kind == "object":
        known = schema["properties"]
        if not isinstance(value, dict) or not set(schema["required"]) <= set(value) <= set(known):
            return False
        return all(obeys(item, known[key]) for key, item in value.items())
    return {"boolean": isinstance(value, bool), "null": value is None}[kind]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 1.0, 20.0]))
def test_a_finished_answer_obeys_its_schema(llm, schema, seed, temperature):
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=seed)
    (answer,) = llm.generate("x", params, output=OutputRule(kind="json_schema", value=schema, strict=True))
    if answer.finish_reason == "stop":
        assert obeys(json.loads(answer.text), schema), answer.text
    else:
        assert len(answer.token_ids) == MAX_TOKENS


def test_the_check_can_fail():
    schema = {"type": "object", "properties": {"a": integers_between(0, 3)}, "required": ["a"]}
    assert obeys({"a": 3}, schema)
    assert not any(obeys(value, schema) for value in ({"a": 4}, {}, {"a": 1, "b": 1}, {"a": True}, [], None))
    assert not obeys("abcd", {"type": "string", "pattern": "^[a-c]{1,3}$"})


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), choices=st.lists(st.text("abé \n\"'\\", max_size=4), min_size=1, max_size=6))
def test_an_answer_is_one_of_the_choices(llm, seed, choices):
    params = SamplingParams(max_tokens=40, temperature=5.0, seed=seed, ignore_eos=True, min_tokens=30)
    answers = llm.generate(["x", "y"], params, output=OutputRule(kind="choice", value=choices))
    assert {answer.finish_reason for answer in answers} == {"stop"}
    assert {answer.text for answer in answers} <= set(choices)
