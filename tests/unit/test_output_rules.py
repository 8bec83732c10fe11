"""What users ask of an answer's form becomes a grammar that accepts just that."""

import json

import pytest

from caudal.constrain.finish import byte_table, try_grammar
from caudal.constrain.matcher import GrammarError, Matcher, TokenTable
from caudal.constrain.output_rule import MAX_CHOICES, OutputRule, after, either, grammar_of, lark, literal
from caudal.errors import InvalidParameter

CONTROL = {"<|im_end|>": 256, "<think>": 257, "</think>": 258, "<tool_call>": 259}
TABLE = TokenTable([*(bytes([i]) for i in range(256)), *(t.encode() for t in CONTROL)], [*CONTROL.values()], [256], 260)


def tokens_of(text):
    ids, rest = [], text
    while rest:
        control = next((t for t in CONTROL if rest.startswith(t)), None)
        ids += [CONTROL[control]] if control else rest[0].encode()
        rest = rest[len(control or rest[0]) :]
    return ids


def accepts(grammar, text):
    """Whether an answer of just this text is what the grammar asks for."""
    matcher = Matcher(TABLE, try_grammar(grammar, byte_table(260, CONTROL)))
    return matcher.accepted([*tokens_of(text), 256]) == len(tokens_of(text)) + 1


def rule(kind, value=None, **options):
    return grammar_of(OutputRule(kind=kind, value=value, **options))


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        (rule("json_schema", SCHEMA), ['{"a":1}', '{ "a": -20 }', '{\n  "a": 1\n}'], ['{"a":"x"}', "{}", '{"a":1}}']),
        (rule("json_schema", json.dumps(SCHEMA)), ['{"a":1}'], ['{"a":1.5}']),
        (rule("json_schema", SCHEMA, any_whitespace=False), ['{"a":1}'], ['{"a": 1}', '{ "a":1}']),
        (rule("json_schema", {"x-guidance": {"whitespace_flexible": False}}), ['{"a" : [1]}'], ["{"]),
        (rule("json_schema", True), ["null", "[{}]"], ["nul"]),  # noqa: FBT003 - a schema may be a bool
        (rule("json_schema", SCHEMA), [], ['{"a":' + "\n" * 30 + "1}"]),
        (rule("json_object"), ["{}", '{"x":[null,true,{"y":"é😀"}]}'], ["[]", "1", '"x"']),
        (rule("regex", r"\d{3}-[a-z]+/x"), ["123-ab/x"], ["123-ab", "12-a/x", "123-ab/xx"]),
        (rule("regex", "a\\/b\nc"), ["a/b\nc"], ["a/bc"]),
        (rule("regex", ""), [""], ["a"]),
        (rule("choice", ["yes", 'no "really"', "é😀\n"]), ["yes", 'no "really"', "é😀\n"], ["no", "ye", "yesno"]),
        (rule("choice", ["a", "ab", "a"]), ["a", "ab"], ["abb", ""]),
        (rule("grammar", 'root ::= "x" item{2,3}\nitem ::= [0-9] | "é"'), ["x12", "xé3é"], ["x1", "x1234"]),
        (rule("grammar", 'start: "x" /[0-9]+/'), ["x12"], ["x"]),
        (rule("lark", 'start: "x" y\ny: "(" y ")" | ""'), ["x((()))"], ["x(()"]),
        (rule("json_schema", {"oneOf": [{"type": "integer"}, {"type": "null"}]}), ["12", "null"], ["true"]),
        (rule("json_schema", {"type": "array", "uniqueItems": True}), ["[1,1]"], ["1"]),  # ignored: not strict
        (rule("lark", 'start: <think> /[a-z]*/ <[258]> "x"'), ["<think>abc</think>x"], ["abc</think>x"]),
    ],
)
def test_a_rule_accepts_what_it_says(grammar, yes, no):
    assert [accepts(grammar, text) for text in [*yes, *no]] == [True] * len(yes) + [False] * len(no)


def test_json_has_no_control_tokens():
    """A control token's text may be spelled in a string; the token itself may not come."""
    matcher = Matcher(TABLE, rule("json_object"))
    matcher.consume(list(b'{"a":"<think'))
    assert matcher.accepted([ord(">")]) == 1
    for token_id in CONTROL.values():
        assert matcher.accepted([token_id]) == 0


def test_a_rule_comes_after_reasoning():
    end, begin = literal("</think>", CONTROL), literal("<think>", CONTROL)
    rules = f"rest: TEXT {end}\nthought: {begin} rest\nTEXT: /(.|\\n)*/\nSPACE: /[ \\n]{{0,8}}/"
    inside = after(["rest SPACE"], rule("json_schema", SCHEMA), rules)
    assert accepts(inside, 'hm {"a":"b"}\n</think>\n\n{"a":1}')
    assert not accepts(inside, '{"a":1}')
    assert not accepts(inside, 'hm</think>{"a":"b"}')
    maybe = after(["(thought SPACE)?"], rule("choice", ["yes"]), rules)
    assert accepts(maybe, "yes")
    assert accepts(maybe, "<think>x</think> yes")
    assert not accepts(maybe, "x</think> yes")


def test_a_marker_that_is_text_ends_reasoning_where_it_first_stands():
    rules = 'rest[lazy]: TEXT "</q>"\nTEXT: /(.|\\n)*/'
    grammar = after(["rest"], rule("choice", ["a", "b"]), rules)
    assert accepts(grammar, "so <q </q>a")
    assert not accepts(grammar, "so </q></q>a")


def test_one_of_two_grammars():
    calls = lark('start: <[259]> "f"')
    rules = "thought: <[257]> TEXT <[258]>\nTEXT: /(.|\\n)*/"
    both = either([after(["thought?"], rule("json_schema", SCHEMA), rules), calls])
    assert accepts(both, '{"a":1}')
    assert accepts(both, '<think>f</think>{"a":1}')
    assert accepts(both, "<tool_call>f")
    assert not accepts(both, "f")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("json_schema", 3, "expected a JSON object"),
        ("json_schema", False, "expected a JSON object"),
        ("json_schema", ["a"], "expected a JSON object"),
        ("json_schema", "{", "is not JSON"),
        ("json_schema", "[" * 100_000, "is not JSON"),
        ("regex", {"a": 1}, "expected a text"),
        ("regex", "a" * 300_000, "expected at most"),
        ("choice", [], "expected a list of texts"),
        ("choice", ["a", 1], "expected a list of texts"),
        ("choice", "abc", "expected a list of texts"),
        ("choice", ["a"] * (MAX_CHOICES + 1), "expected at most"),
        ("grammar", None, "expected a text"),
        ("xml", "a", "expected one of"),
    ],
)
def test_values_of_another_form_are_refused_by_name(kind, value, message):
    with pytest.raises(InvalidParameter, match=message) as caught:
        rule(kind, value, parameter="the_field")
    assert caught.value.parameter == "the_field"
    assert "the_field" in str(caught.value)


def test_a_schema_nested_beyond_what_python_writes_is_refused():
    schema = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(InvalidParameter, match="nested too deeply"):
        rule("json_schema", schema)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (rule("json_schema", {"type": "array", "uniqueItems": True}, strict=True), "uniqueItems"),
        (rule("json_schema", {"$ref": "#"}), "nothing can satisfy"),
        (rule("json_schema", {"$ref": "http://127.0.0.1/x"}), "not present"),
        (rule("grammar", 'foo ::= "a"'), "root"),
        (rule("grammar", "root ::= root"), "nothing can satisfy|rule"),
        (rule("grammar", 'root ::= "a\\'), "."),
        (rule("grammar", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000), "nested too deeply"),
        (rule("lark", 'foo: "a"'), "start"),
        (rule("lark", "start: @other"), "other"),
        (rule("lark", "start: <nothing>"), "nothing"),
        (rule("lark", "start: A\nA: B\nB: A"), "circular"),
        (rule("regex", "(" * 60_000 + "a" + ")" * 60_000), "regex"),
        (rule("regex", "(?=a)b"), "look-around"),
        (rule("regex", "["), "regex"),
    ],
)
def test_grammars_that_cannot_be_used_say_why(grammar, message):
    with pytest.raises(GrammarError, match=message) as caught:
        try_grammar(grammar, byte_table(260, CONTROL))
    assert len(str(caught.value)) < 400


def test_a_model_without_an_end_has_no_grammars():
    with pytest.raises(GrammarError, match="no token that ends"):
        TokenTable([b"a"], [], [], 1)
