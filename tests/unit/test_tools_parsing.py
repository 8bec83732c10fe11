# ruff: noqa: RUF001 - DeepSeek writes a vertical bar of its own
"""What becomes text, what a call, and what of a call, where models write not quite what they were taught."""

import json

import pytest

from caudal.tools.formats import format_of
from caudal.tools.parts import CallArguments, CallBegin, PlainParser, ReasoningPart, TextPart

F = {"name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}
HERMES = format_of("<tool_call></think>")
QWEN = format_of("<tool_call><function=x><parameter=y></think>")
LLAMA = format_of("<|python_tag|>")
HARMONY = format_of("<|channel|><|message|>")
LFM = format_of("<|tool_call_start|>")
MISTRAL = format_of("[TOOL_CALLS][ARGS][THINK]")
PLAIN = format_of("")


def read(answer_format, text, tools=(F,), *, reasoning=True, opens_reasoning=False):
    parser = answer_format.parser(tools=tools, reasoning=reasoning, opens_reasoning=opens_reasoning)
    return parser.push(text) + parser.finish()


def text_in(parts):
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def calls_in(parts):
    calls = [[part.name, ""] for part in parts if isinstance(part, CallBegin)]
    for part in parts:
        if isinstance(part, CallArguments):
            calls[part.index][1] += part.text
    return calls


def tagged(inside):
    return f"<tool_call>\n{inside}\n</tool_call>"


# Streaming


def test_arguments_grow_as_they_come():
    parser = HERMES.parser(tools=[F], reasoning=True, opens_reasoning=False)
    assert parser.push("Look.\n<tool") == [TextPart("Look.")]
    assert parser.push('_call>\n{"name": "f", "argum') == []
    assert parser.push('ents": {"s": "one ') == [CallBegin(0, "f"), CallArguments(0, '{"s":"one ')]
    assert parser.push("two") == [CallArguments(0, "two")]
    assert parser.push('"}}') == [CallArguments(0, '"}')]
    assert parser.push("\n</tool_call>") == []
    assert parser.finish() == []


def test_only_what_may_become_a_marker_is_held_back():
    parser = HERMES.parser(tools=[F], reasoning=True, opens_reasoning=False)
    assert parser.push("a < b <t") == [TextPart("a < b")]
    assert parser.push("able> \n") == [TextPart(" <table>")]
    assert parser.finish() == [TextPart(" \n")]


def test_values_of_tags_come_one_by_one():
    parser = QWEN.parser(tools=[F], reasoning=True, opens_reasoning=False)
    assert parser.push("<tool_call>\n<function=f>\n") == [CallBegin(0, "f")]
    assert parser.push("<parameter=s>\n12\n</parameter>\n<parameter=n>\n") == [CallArguments(0, '{"s":"12","n":')]
    assert parser.push("12\n</parameter>\n</function>\n</tool_call>") == [CallArguments(0, "12}")]


def test_text_in_tags_grows_as_it_comes():
    parser = QWEN.parser(tools=[F], reasoning=True, opens_reasoning=False)
    assert parser.push("<tool_call>\n<function=f>\n<parameter=s>\n") == [CallBegin(0, "f"), CallArguments(0, '{"s":"')]
    assert parser.push('print("a")\n') == [CallArguments(0, 'print(\\"a\\")')]
    assert parser.push("b\n</parameter>\n") == [CallArguments(0, '\\nb"')]


# White space


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (f"Look.\n\n{tagged('{C}')}\n", "Look."),
        (f"\n{tagged('{C}')}\n{tagged('{C}')}\n\n", ""),
        (f"Look.\n{tagged('{C}')}\nDone.", "Look.\nDone."),
        (f"{tagged('{C}')}\nDone.\n", "Done.\n"),
        (f"<think>\nHm.\n</think>\n\n{tagged('{C}')}", ""),
        (f"<think>Hm.</think>\n\nLook. {tagged('{C}')}", "Look."),
        (" \n", " \n"),
    ],
)
def test_space_around_calls_and_reasoning_is_no_text(answer, text):
    parts = read(HERMES, answer.replace("{C}", '{"name": "f", "arguments": {}}'))
    assert text_in(parts) == text


# Reasoning


def test_reasoning_is_told_from_text():
    assert read(HERMES, "<think>\nA\n\nB\n</think>\n\nYes") == [ReasoningPart("A\n\nB"), TextPart("Yes")]
    assert read(HERMES, "A\n</think>Yes", opens_reasoning=True) == [ReasoningPart("A"), TextPart("Yes")]
    assert read(HERMES, "<think>\n\n</think>\n\nYes") == [TextPart("Yes")]
    assert read(HERMES, "<think>cut o") == [ReasoningPart("cut o")]


def test_reasoning_stays_text_when_it_is_asked_for():
    answer = f"<think>\nA {tagged('x')}</think>\n\nYes"
    assert text_in(read(HERMES, answer, reasoning=False)) == answer
    assert text_in(read(HERMES, answer, [], reasoning=False)) == answer
    assert text_in(read(HERMES, "A</think>Yes", reasoning=False, opens_reasoning=True)) == "A</think>Yes"


def test_a_tag_of_reasoning_inside_of_text_is_text():
    assert read(HERMES, "The tag <think> opens </think> it.") == [TextPart("The tag <think> opens </think> it.")]


def test_calls_inside_of_reasoning_are_none():
    parts = read(HERMES, '<think>I could <tool_call>{"name": "f", "arguments": {}}</tool_call></think>No.')
    assert calls_in(parts) == []
    assert text_in(parts) == "No."


def test_a_control_token_ends_reasoning_that_was_left_open():
    parts = read(MISTRAL, '[THINK]Hm.[TOOL_CALLS]f[ARGS]{"n": 1}')
    assert parts[0] == ReasoningPart("Hm.")
    assert calls_in(parts) == [["f", '{"n":1}']]


# Without tools


def test_without_tools_calls_are_text():
    answer = tagged('{"name": "f", "arguments": {}}')
    assert read(HERMES, answer, []) == [TextPart(answer)]
    assert isinstance(HERMES.parser(tools=[], reasoning=False, opens_reasoning=False), PlainParser)


def test_an_unknown_tool_is_called_all_the_same():
    assert calls_in(read(HERMES, tagged('{"name": "g", "arguments": {"a": 1}}'))) == [["g", '{"a":1}']]


# What is not quite JSON


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "arguments": {"s": "a\nb"}}', {"s": "a\nb"}),
        ("{'name': 'f', 'arguments': {'s': 'it\\'s', 'n': None, 'b': True}}", {"s": "it's", "n": None, "b": True}),
        ('{"name": "f", "arguments": {"s": "say "hi", then go"}}', {"s": 'say "hi", then go'}),
        ('{"name": "f", "arguments": {"s": "\\d+\\s"}}', {"s": "\\d+\\s"}),
        ('{"name": "f", "arguments": {"n": 1,}}', {"n": 1}),
        ('{"name": "f", "arguments": {"n": 1 "s": "x" "t": "y"}}', {"n": 1, "s": "x", "t": "y"}),
        ('{"name": "f", "arguments": {n: .5, s: "x"}}', {"n": 0.5, "s": "x"}),
        ('{"arguments": {"n": 1}, "name": "f"}', {"n": 1}),
        ('{"name": "f", "arguments": "{\\"n\\": 1}"}', {"n": 1}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f"}', {}),
        ('{"type": "function", "id": "1", "name": "f", "parameters": {"n": 1}}', {"n": 1}),
        ('{"type": "function", "function": {"name": "f", "arguments": {"n": 1}}}', {"n": 1}),
        ('[{"name": "f", "arguments": {"n": 1}}]', {"n": 1}),
        ('{"name": "f", "arguments": {"n": 1}', {"n": 1}),
        ('{"name": "f", "arguments": {"n": 1', {"n": 1}),
        ('{"name": "f", "arguments": {"s": "x"', {"s": "x"}),
    ],
)
def test_what_can_only_mean_one_thing_is_put_right(written, arguments):
    parts = read(HERMES, tagged(written) + " Done.")
    assert [[name, json.loads(text)] for name, text in calls_in(parts)] == [["f", arguments]]
    assert text_in(parts) == "Done."


def test_a_call_that_stops_being_one_keeps_what_it_had():
    parts = read(HERMES, tagged('{"name": "f", "arguments": {"n": 1, "a": [2, @@]}}') + tagged('{"name": "f"}'))
    assert calls_in(parts) == [["f", '{"n":1,"a":[2]}'], ["f", "{}"]]
    assert text_in(parts) == "@@]}}\n</tool_call>"


@pytest.mark.parametrize(
    "answer",
    [
        tagged("not JSON"),
        tagged("{}"),
        tagged('{"name": 5, "arguments": {}}'),
        tagged('{"name": "f", "arguments": [1]}'),
        '<tool_call>\n{"name": "f", "arg',
        "<tool_call",
        "[f(x)]",
    ],
)
def test_what_is_no_call_becomes_text(answer):
    assert read(HERMES, answer) == [TextPart(answer)]


@pytest.mark.parametrize(
    ("answer_format", "answer", "arguments"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"s": "ab', '{"s":"ab'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"n": 12', '{"n":12'),
        (QWEN, "<tool_call>\n<function=f>\n<parameter=s>\nab", '{"s":"ab'),
        (QWEN, "<tool_call>\n<function=f>\n<parameter=n>\n12", '{"n":12'),
        (LFM, "<|tool_call_start|>[f(s='ab", '{"s":"ab'),
        (HARMONY, '<|channel|>commentary to=functions.f<|message|>{"s": "ab', '{"s":"ab'),
    ],
)
def test_arguments_cut_off_stay_as_they_are(answer_format, answer, arguments):
    assert calls_in(read(answer_format, answer)) == [["f", arguments]]


def test_nesting_has_a_limit():
    deep = '{"a": ' * 500
    parts = read(HERMES, tagged('{"name": "f", "arguments": ' + deep + "1" + "}" * 501))
    assert isinstance(json.loads(calls_in(parts)[0][1]), dict)


# Bare calls


@pytest.mark.parametrize("answer_format", [HERMES, PLAIN])
@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "f", "arguments": {"n": 1}}',
        '```json\n{"name": "f", "arguments": {"n": 1}}\n```',
        '\n```\n{"name": "f", "arguments": {"n": 1}}\n```\n',
        '<think>Hm.</think>\n{"name": "f", "arguments": {"n": 1}}',
    ],
)
def test_a_call_without_its_tags_is_a_call(answer_format, answer):
    if "<think>" in answer and answer_format is PLAIN:
        return
    parts = read(answer_format, answer)
    assert calls_in(parts) == [["f", '{"n":1}']]
    assert text_in(parts) == ""


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "g", "arguments": {"n": 1}}',
        '{"name": "f", "arguments": {"n": 1}, "more": 1}',
        '{"name": "f"}',
        '{"city": "Paris"}',
        '```json\n{"name": "f", "size": 1}\n```',
        'Look: {"name": "f", "arguments": {"n": 1}}',
    ],
)
def test_other_json_is_text(answer):
    assert read(HERMES, answer) == [TextPart(answer)]


def test_llama():
    call = '{"name": "f", "parameters": {"n": 1}}'
    assert calls_in(read(LLAMA, call)) == [["f", '{"n":1}']]
    assert calls_in(read(LLAMA, f"<|python_tag|>{call}; {call}")) == [["f", '{"n":1}']] * 2
    builtin = read(LLAMA, '<|python_tag|>brave_search.call(query="a, b")')
    assert calls_in(builtin) == [["brave_search", '{"query":"a, b"}']]
    assert calls_in(read(LLAMA, f'{{"type": "function", "function": "f", {call[14:]}')) == [["f", '{"n":1}']]
    assert calls_in(read(LLAMA, f"{call}; {call}")) == [["f", '{"n":1}']] * 2


@pytest.mark.parametrize(
    "answer",
    [
        '{"city": "Paris"}',
        '{"name": "Alice Smith", "email": "a@b.c", "age": 30}',
        '{"name": "Alice Smith", "parameters": {"n": 1}}',
        '{"parameters": {"n": 1}, "name": "Alice Smith"}',
        '{"function": {"name": "Alice Smith", "arguments": {}}}',
        '{"parameters": {"n": 1}}',
        '{"name": "f"}',
        '{"name": "f", "age": 30}',
        '{"name": ["f"], "parameters": {}}',
    ],
)
def test_an_answer_in_json_is_no_call_of_llama(answer):
    assert read(LLAMA, answer) == [TextPart(answer)]
    assert text_in(read(LLAMA, f'  {answer} and {{"name": 1}}')) == f'  {answer} and {{"name": 1}}'
    call = '{"name": "f", "parameters": {"n": 1}}'
    parts = read(LLAMA, f"{call}; {answer}")
    assert (calls_in(parts), text_in(parts)) == ([["f", '{"n":1}']], f"; {answer}")


def test_a_bare_call_of_llama_comes_as_soon_as_it_is_one():
    parser = LLAMA.parser(tools=[F], reasoning=True, opens_reasoning=False)
    assert parser.push('{"name": "f", "parameters": ') == []
    assert parser.push('{"s": "one ') == [CallBegin(0, "f"), CallArguments(0, '{"s":"one ')]
    assert parser.push('two"}}') == [CallArguments(0, 'two"}')]


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        (r"a\ud83d", "a\ufffd"),
        (r"\ude00b", "\ufffdb"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\uD83D\uDE00", "\U0001f600"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\ud83d\n\ude00", "\ufffd\n\ufffd"),
        (r"\ud83d\u12", "\ufffd\\u12"),
        (r"\ud83du", "\ufffdu"),
    ],
)
def test_half_surrogates(written, read_as):
    for arguments in (f'{{"s": "{written}"}}', json.dumps(f'{{"s": "{written}"}}'), f'"{{\\"s\\": \\"{written}\\"}}"'):
        parts = read(HERMES, tagged(f'{{"name": "{written}", "arguments": {arguments}}}'))
        ((name, text),) = calls_in(parts)
        assert (name, json.loads(text)) == (read_as, {"s": read_as})
    ((_, text),) = calls_in(read(LFM, f"[f(s='{written}', n='\\U0000d83d')]"))
    assert json.loads(text) == {"s": read_as, "n": "\ufffd"}


def test_python_calls():
    answer = """[f(s='it\\'s', n=-1), f(s=\"\"\"a"b\n\"\"\", n=None), f(s=('a', "b"), n={'k': [True]}), f()]"""
    expected = [
        {"s": "it's", "n": -1}, {"s": 'a"b\n', "n": None}, {"s": ["a", "b"], "n": {"k": [True]}}, {},
    ]  # fmt: skip
    for text in (answer, f"<|tool_call_start|>{answer}<|tool_call_end|>"):
        assert [json.loads(a) for _, a in calls_in(read(LFM, text))] == expected
    for text in ("[f(1)]", "[g(s='x')]", "[1, 2]", "f(s='x')", "[f(__import__('os'))]"):
        assert read(LFM, text) == [TextPart(text)]


# Mistral, DeepSeek, Kimi


@pytest.mark.parametrize(
    "answer",
    [
        '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]f[ARGS]{"n": 2}',
        '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"n": 1}[TOOL_CALLS]f{"n": 2}',
        '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}, "id": "abcdefghi"}, {"name": "f", "arguments": {"n": 2}}]',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}] [TOOL_CALLS]f {"n": 2}',
    ],
)
def test_mistral_in_all_its_forms(answer):
    parts = read(MISTRAL, answer)
    assert calls_in(parts) == [["f", '{"n":1}'], ["f", '{"n":2}']]
    assert text_in(parts) == ""


def test_names_lose_what_belongs_to_the_format():
    kimi = format_of("<|tool_calls_section_begin|>")
    call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert calls_in(read(kimi, f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>")) == [["f", "{}"]]
    for source in ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜>```json"):
        call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
        call += "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        parts = read(format_of(source), f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>")
        assert calls_in(parts) == [["f", "{}"], ["function", "{}"]]


# Values as raw text


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, " a\n\nb ", " a\n\nb "),
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/t"}]}, "x", "x"),
        ({"$ref": "#/$defs/t"}, "12", "12"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"type": "array"}, "['a', 1]", ["a", 1]),
        ({"type": "object"}, '{"a": "b"}', {"a": "b"}),
        ({"type": "number"}, "1.5", 1.5),
        ({"$ref": "#/$defs/circle"}, "1", 1),
        ({"type": 5, "anyOf": 3, "enum": {}}, "1", 1),
        (None, "12", 12),
        (None, "twelve", "twelve"),
        (None, "1" * 5000, "1" * 5000),
        (None, "[" * 5000, "[" * 5000),
    ],
)
def test_a_value_has_the_type_that_the_schema_asks_for(schema, written, value):
    definitions = {"t": {"type": "string"}, "circle": {"$ref": "#/$defs/circle"}}
    tool = {"name": "f", "parameters": {"properties": {"k": schema} if schema else {}, "$defs": definitions}}
    answer = f"<tool_call>\n<function=f>\n<parameter=k>\n{written}\n</parameter>\n</function>\n</tool_call>"
    [[name, arguments]] = calls_in(read(QWEN, answer, [tool]))
    assert (name, json.loads(arguments)) == ("f", {"k": value})


@pytest.mark.parametrize(
    "answer",
    [
        "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>",
        "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",
    ],
)
def test_forgotten_tags_are_forgiven(answer):
    parts = read(QWEN, answer)
    assert calls_in(parts) == [["f", '{"s":"x"}']]
    assert text_in(parts) == ""


def test_no_parameters_that_make_no_sense_break_a_parser():
    for parameters in (None, 5, [], {"properties": 5}, {"properties": {"s": 5}}, {"$ref": 3}, {"$ref": "#/x"}):
        tool = {"name": "f", "parameters": parameters}
        parts = read(QWEN, "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>", [tool])
        assert calls_in(parts) == [["f", '{"s":"x"}']]


# gpt-oss


def test_harmony():
    answer = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>'
    )
    assert read(HARMONY, answer) == [
        ReasoningPart("Hm."), TextPart("Let me look."), CallBegin(0, "f"), CallArguments(0, '{"n":1}'),
    ]  # fmt: skip
    final = "<|channel|>final<|message|>Yes.\n<|return|>"
    assert text_in(read(HARMONY, final)) == "Yes.\n"
    assert text_in(read(HARMONY, "Yes.")) == "Yes."
    assert read(HARMONY, "m.<|end|><|start|>assistant" + final, opens_reasoning=True)[0] == ReasoningPart("m.")


def test_harmony_says_who_it_calls_in_many_places():
    for header in (" to=functions.f<|channel|>commentary json", "<|channel|>commentary to=functions.f",
                   "<|channel|>commentary to=f <|constrain|> json", "<|channel|>analysis to=functions.f code"):  # fmt: skip # noqa: E501
        assert calls_in(read(HARMONY, header + '<|message|>{"n": 1}')) == [["f", '{"n":1}']]


def test_harmony_without_tools_or_reasoning_leaves_the_markers():
    call = '<|channel|>commentary to=functions.f<|message|>{"n": 1}<|call|>'
    assert text_in(read(HARMONY, call, [])) == call
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    answer = thought + "<|start|>assistant<|channel|>final<|message|>Yes."
    assert text_in(read(HARMONY, answer, reasoning=False)) == f"{thought}\nYes."
