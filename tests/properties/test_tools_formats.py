# ruff: noqa: RUF001 - DeepSeek writes a vertical bar of its own
"""Every format of calls: any cutting of the text gives the same parts, any text is read, any arguments come through."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.tools import table
from caudal.tools.formats import AnswerFormat, format_of
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart
from caudal.tools.reasoning import Reasoning

THINK = Reasoning(begin="<think>", end="</think>")
SYNTAXES = {row.name: row for _, row in table.CALLS}
FORMATS = {
    **{name: AnswerFormat(name=name, calls=row, reasoning=THINK) for name, row in SYNTAXES.items()},
    "harmony": format_of("<|channel|><|message|>"),
    "mistral_think": format_of("[TOOL_CALLS][ARGS][THINK]"),
    "command_r": format_of("<|START_ACTION|><|START_THINKING|><|START_RESPONSE|>"),
    "gemma": format_of("<|tool_call>call:<|channel>"),
}
TOOLS = [
    {"name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}},
    {"name": "get_weather"},
]


def read(answer_format, pieces, tools=TOOLS, *, reasoning=True, opens_reasoning=False):
    parser = answer_format.parser(tools=tools, reasoning=reasoning, opens_reasoning=opens_reasoning)
    parts = []
    for piece in pieces:
        parts += parser.push(piece)
    return joined(parts + parser.finish())


def joined(parts):
    whole = []
    for part in parts:
        last = whole[-1] if whole else None
        if type(last) is type(part) and getattr(part, "index", None) == getattr(last, "index", None):
            whole[-1] = CallArguments(part.index, last.text + part.text) if isinstance(part, CallArguments) else type(part)(last.text + part.text)  # fmt: skip # noqa: E501
        else:
            whole.append(part)
    return whole


def calls_in(parts):
    """The calls: name and the arguments' text."""
    calls = [[part.name, ""] for part in parts if isinstance(part, CallBegin)]
    for part in parts:
        if isinstance(part, CallArguments):
            calls[part.index][1] += part.text
    return calls


def is_unicode(part):
    """Whether all that a part says can be sent: no half of a surrogate pair."""
    said = part.name if isinstance(part, CallBegin) else part.text
    return said == said.encode(errors="replace").decode()


# How each format writes calls, from its description and not from the code that reads them.


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def gemma_value(value, *, top=False):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join((k if top else f'<|"|>{k}<|"|>') + ":" + gemma_value(v) for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def raw(value):
    return value if isinstance(value, str) else dumps(value)


def python_call(name, arguments):
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def dsml(section):
    def write(calls):
        invokes = "".join(
            f'<｜DSML｜invoke name="{name}">\n'
            + "".join(
                f'<｜DSML｜parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{raw(v)}</｜DSML｜parameter>\n'  # noqa: E501
                for k, v in arguments.items()
            )
            + "</｜DSML｜invoke>\n"
            for name, arguments in calls
        )
        return f"<｜DSML｜{section}>\n{invokes}</｜DSML｜{section}>"

    return write


def invoke(prefix, section):
    def write(calls):
        invokes = "".join(
            f'<{prefix}invoke name="{n}">\n'
            + "".join(f'<{prefix}parameter name="{k}">{raw(v)}</{prefix}parameter>\n' for k, v in a.items())
            + f"</{prefix}invoke>\n"
            for n, a in calls
        )
        return f"<{section}>\n{invokes}</{section}>"

    return write


def glm(line):
    def write(calls):
        return line.join(
            f"<tool_call>{n}{line}"
            + "".join(f"<arg_key>{k}</arg_key>{line}<arg_value>{raw(v)}</arg_value>{line}" for k, v in a.items())
            + "</tool_call>"
            for n, a in calls
        )

    return write


def objects(begin, end, between=", ", name_key="name", arguments_key="arguments"):
    def write(calls):
        return begin + between.join(dumps({name_key: n, arguments_key: a}) for n, a in calls) + end

    return write


def each(write, between="\n"):
    return lambda calls: between.join(write(n, a) for n, a in calls)


def seed_call(n, a):
    inside = "".join(f"<parameter={k}>{raw(v)}</parameter>\n" for k, v in a.items())
    return f"<seed:tool_call>\n<function={n}>\n{inside}</function>\n</seed:tool_call>"


def qwen_call(n, a):
    inside = "".join(f"<parameter={k}>\n{raw(v)}\n</parameter>\n" for k, v in a.items())
    return f"<tool_call>\n<function={n}>\n{inside}</function>\n</tool_call>"


def minicpm_call(n, a):
    inside = "".join(f'<param name="{k}">{raw(v)}</param>' for k, v in a.items())
    return f'<function name="{n}">{inside}</function>'


def deepseek(write, between):
    return lambda calls: f"<｜tool▁calls▁begin｜>{each(write, between)(calls)}<｜tool▁calls▁end｜>"


WRITERS = {
    "hermes": each(lambda n, a: f"<tool_call>\n{dumps({'name': n, 'arguments': a})}\n</tool_call>"),
    "qwen_xml": each(qwen_call),
    "seed": each(seed_call),
    "llama": objects("", "", "; ", arguments_key="parameters"),
    "llama_pythonic": lambda calls: f"<|python_start|>[{', '.join(python_call(*c) for c in calls)}]<|python_end|>",
    "lfm": lambda calls: f"<|tool_call_start|>[{', '.join(python_call(*c) for c in calls)}]<|tool_call_end|>",
    "olmo": lambda calls: "<function_calls>\n" + "\n".join(python_call(*c) for c in calls) + "\n</function_calls>",
    "mistral_list": objects("[TOOL_CALLS][", "]"),
    "mistral": each(lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}", ""),
    "deepseek_v3": deepseek(
        lambda n, a: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>",
        "\n",
    ),
    "deepseek_v3.1": deepseek(lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>", ""),
    "kimi": lambda calls: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dumps(a)}<|tool_call_end|>"
            for i, (n, a) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    ),
    "functionary": each(lambda n, a: f"<function={n}>{dumps(a)}</function>", ""),
    "solar": lambda calls: (
        "<|tool_calls|>"
        + "".join(
            f"<|tool_call:begin|>call1<|tool_call:name|>{n}<|tool_call:args|>{dumps(a)}<|tool_call:end|>"
            for n, a in calls
        )
        + "<|calls|>"
    ),
    "dsml_function_calls": dsml("function_calls"),
    "dsml_tool_calls": dsml("tool_calls"),
    "minimax": invoke("", "minimax:tool_call"),
    "atem": invoke("atem:", "atem:function_calls"),
    "glm": glm("\n"),
    "glm_4.7": glm(""),
    "ifm": lambda calls: (
        "<ifm|tool_calls>\n"
        + "".join(
            f"<ifm|tool_call>{n}\n"
            + "".join(
                f"<ifm|arg_key>{k}</ifm|arg_key>\n<ifm|arg_value>{raw(v)}</ifm|arg_value>\n" for k, v in a.items()
            )
            + "</ifm|tool_call>\n"
            for n, a in calls
        )
        + "</ifm|tool_calls>"
    ),
    "minicpm": each(minicpm_call),
    "granite": objects("<|tool_call|>[", "]"),
    "phi": objects("<|tool_call|>[", "]<|/tool_call|>"),
    "command_r": lambda calls: (
        "<|START_ACTION|>[\n    "
        + ",\n    ".join(
            dumps({"tool_call_id": str(i), "tool_name": n, "parameters": a}) for i, (n, a) in enumerate(calls)
        )
        + "\n]<|END_ACTION|>"
    ),
    "nemotron": objects("<TOOLCALL>[", "]</TOOLCALL>"),
    "apriel": objects("<tool_calls>[", "]</tool_calls>"),
    "minimax_m1": objects("<tool_calls>\n", "\n</tool_calls>", "\n"),
    "gigachat": each(lambda n, a: f"<|function_call|>{dumps({'name': n, 'arguments': a})}", ""),
    "gemma": each(lambda n, a: f"<|tool_call>call:{n}{gemma_value(a, top=True)}<tool_call|>", ""),
    "harmony": each(
        lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumps(a)}<|call|>", ""
    ),
}
# Formats whose values are raw text cannot say everything: not what ends a value, nor white space at their ends where
# a value's lines are its own.
IS_RAW = {name for name, row in SYNTAXES.items() if isinstance(row, table.TaggedValues)}
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["</tool_call>", 'a "b", c', "it's", "\\", "\\n", "\n\n", '"}', "'", '"""', "```", "<think>", "{", "ünï\u2028"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=3), max_leaves=8)
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def tools_for(calls):
    """Tools with the schemas that these calls' arguments have; where two calls differ, none is said."""
    properties = {}
    for name, arguments in calls:
        for key, value in arguments.items():
            kind = {"type": TYPES.get(type(value), "null")}
            known = properties.setdefault(name, {}).setdefault(key, kind)
            if known != kind:
                return None
    return [
        {"name": name, "parameters": {"type": "object", "properties": properties.get(name, {})}} for name, _ in calls
    ]


def says_everything(name, calls):
    """Whether this format can say these calls."""
    row = SYNTAXES.get(name)
    flat = [value for _, arguments in calls for value in arguments.values()]
    if name in IS_RAW:
        closing = (row.value[1], *(["\n" + row.key[0], "\n" + row.call[1]] if row.lines else []))
        written = [f"\n{raw(v)}\n" if row.lines else raw(v) for v in flat]
        return not any(end in text for text in written for end in closing)
    if name == "gemma":
        return '<|"|>' not in json.dumps(flat).replace('\\"', '"')
    return True


def cut(text, cuts):
    ends = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


def test_every_format_is_written_here():
    assert set(WRITERS) == {*SYNTAXES, "harmony"}
    assert all(row.markers for row in SYNTAXES.values())


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, cuts=st.lists(st.integers(0, 400), max_size=8), data=st.data())
def test_calls_come_through(name, calls, cuts, data):
    tools = tools_for(calls)
    if tools is None or not says_everything(name, calls):
        return
    if name == "harmony":
        calls = calls[:1]
    before = data.draw(st.sampled_from(["", "\n", "Let me look.\n"]))
    if name == "llama" and before != "\n":
        before = ""
    text = before + WRITERS[name](calls)
    parts = read(FORMATS[name], cut(text, cuts), tools)
    assert [(n, json.loads(a)) for n, a in calls_in(parts)] == calls
    assert [p for p in parts if isinstance(p, TextPart)] == ([TextPart("Let me look.")] if "L" in before else [])


SCRAPS = [
    '{"name": "f", "arguments": {"s": "x"', '{"name": "f"', '"arguments": {', "}", "}}", "{", "[", "]", '"', "'", "\\",
    "\\u12", ",", ":", "=", " ", "\n", "f(", "f(s='", ")", "call:f{", "f", "to=functions.f", "```json", "```", "null",
    "assistant", "analysis", "commentary", "final", "thought\n", "1e5", "-", "tru", '"""', 'string="true">', "é", "\0",
    "\\ud83d", "\\ude00", "\\\\ud83d", "\\U0000d83d", '{"name": "f\\ud83d", "arguments": "{\\"s\\": \\"\\\\ud83d\\"}"}',
]  # fmt: skip
FRAGMENTS = [*sorted({m for f in FORMATS.values() for m in f.markers}), *SCRAPS]
SOUP = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=25).map("".join)


def soup_of(answer_format):
    """Text of this format's own fragments, and some of others'."""
    own = [*answer_format.markers, *SCRAPS]
    written = [WRITERS[answer_format.name]([("f", {"s": "x", "n": 1})])] if answer_format.name in WRITERS else []
    halves = [text[:i] for text in written for i in range(1, len(text), 5)]
    rests = [text[i:] for text in written for i in range(1, len(text), 5)]
    return st.lists(st.sampled_from([*own, *written, *halves, *rests]), max_size=12).map("".join) | SOUP


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 200), max_size=10), flags=st.tuples(st.booleans(), st.booleans()))
def test_any_text_is_read_and_any_cutting_gives_the_same(name, data, cuts, flags):
    text = data.draw(soup_of(FORMATS[name]))
    options = {"reasoning": flags[0], "opens_reasoning": flags[1]}
    whole = read(FORMATS[name], [text], **options)
    assert read(FORMATS[name], cut(text, cuts), **options) == whole
    assert read(FORMATS[name], list(text), **options) == whole
    calls = calls_in(whole)
    for _, arguments in calls[:-1]:
        assert isinstance(json.loads(arguments), dict)
        json.dumps(json.loads(arguments), ensure_ascii=False).encode()
    assert all(is_unicode(part) for part in whole)
    assert [part.index for part in whole if isinstance(part, CallBegin)] == list(range(len(calls)))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_characters="<[{`f"), max_size=60), tools=st.booleans())
def test_text_without_markers_is_not_changed(name, text, tools):
    if text.lstrip().startswith("to="):
        return
    parts = read(FORMATS[name], [text], TOOLS if tools else [])
    assert parts == ([TextPart(text)] if text else [])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), opens=st.booleans())
def test_nothing_is_lost_without_tools_and_reasoning(name, data, opens):
    """Then all is text as it is, but for markers that mean nothing."""
    answer_format = FORMATS[name]
    if answer_format.is_harmony or answer_format.dropped:
        return
    text = data.draw(soup_of(answer_format))
    parts = read(answer_format, list(text), [], reasoning=False, opens_reasoning=opens)
    assert parts == ([TextPart(text)] if text else [])


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_reasoning_comes_first(text, cuts):
    answer = f"<think>\n{text}\n</think>\n\nYes."
    if "</think>" in text:
        return
    parts = read(FORMATS["hermes"], cut(answer, cuts))
    thought = text.strip(" \t\r\n")
    assert parts == [*([ReasoningPart(thought)] if thought else []), TextPart("Yes.")]
    assert read(FORMATS["hermes"], cut(answer[8:], cuts), opens_reasoning=True) == parts


HUGE = 200_000
ADVERSARIES = [
    " ", "<", "<tool_call>", "<tool_call>{", "[", '"', "\\", '",   ', '"a": ', "a", "<think>", "</think>",
    "<|channel|>", "<|message|>", "(", "f(", "[TOOL_CALLS]", "[TOOL_CALLS]f", "<function=f>", "<parameter=a>",
    "<arg_key>a</arg_key>",
    '{"name": "f", "arguments": {"a": "b"}}', "```json\n", "'''", "\\u12", "\n</function", "{{", "[f(", "<|",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_time_is_linear(name):
    answer_format = FORMATS[name]
    opener = answer_format.markers[0]
    begins = ["", opener, '{"name": "f", "arguments": {"s": "', '{"arguments": {"s": "']
    if name in WRITERS:
        written = WRITERS[name]([("f", {"s": "x"})])
        begins += [written[: written.index("x") + 1], written[: written.rindex("f") + 1]]
    slow = []
    for begin in begins:
        for unit in ADVERSARIES:
            text = begin + unit * (HUGE // 20 // len(unit))
            start = time.process_time()
            read(answer_format, [text[i : i + 50] for i in range(0, len(text), 50)])
            seconds = time.process_time() - start
            if seconds > 0.2:
                slow.append((begin, unit, seconds))
    assert not slow


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("unit", ["<tool_call>{", '",   ', '"', " ", "\\"])
def test_huge_answers_take_less_than_a_second(name, unit):
    for begin in ("", FORMATS[name].markers[0] + '{"name": "f", "arguments": {"s": "'):
        text = begin + unit * (HUGE // len(unit))
        start = time.process_time()
        read(FORMATS[name], [text])
        assert time.process_time() - start < 1
