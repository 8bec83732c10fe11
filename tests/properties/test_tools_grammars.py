"""The grammars of calls compile, take the calls that each format writes, and take no others."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tools_formats import FORMATS, IS_RAW, WRITERS, calls_in, read

from caudal.errors import InvalidParameter
from caudal.tools.call_grammar import MAX_CALLS
from caudal.tools.formats import AnswerFormat, format_of
from caudal.tools.parts import TextPart
from caudal.tools.table import HERMES

llguidance = pytest.importorskip("llguidance", reason="needs the package's dependencies: runs in CI")

EOS = 256
TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["C", "F"], "type": "string"},
                "days": {"type": "integer"},
                "o": {"$ref": "#/$defs/o"},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"o": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "boolean"}}}}},
        },
    },
    {"name": "now"},
]
GOOD = [
    [("get_weather", {"city": "Paris", "days": 2})],
    [("get_weather", {"city": 'Paris\n"x" é', "unit": "C", "days": -1, "o": {"a": [True, False]}})],
    [("now", {})],
]
WRONG = [
    [("get_weather", {"city": "Paris"})],
    [("get_weather", {"city": "Paris", "days": "two"})],
    [("get_weather", {"city": "Paris", "days": 2, "more": 1})],
    [("get_weather", {"city": "Paris", "unit": "K", "days": 2})],
    [("get_weather", {"city": "Paris", "days": 2, "o": {"a": [1]}})],
    [("later", {})],
]
FORCED = [name for name in WRITERS if name != "gemma"]


def python_call(name, arguments):
    """With JSON's values: a grammar has one way to write each."""
    return f"{name}({', '.join(f'{k}={json.dumps(v, ensure_ascii=False)}' for k, v in arguments.items())})"


def python_list(begin, end, between=", "):
    return lambda calls: begin + between.join(python_call(*call) for call in calls) + end


WRITE = WRITERS | {
    "llama_pythonic": python_list("<|python_start|>[", "]<|python_end|>"),
    "lfm": python_list("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "olmo": python_list("<function_calls>\n", "\n</function_calls>", "\n"),
}


class Vocabulary:
    """Bytes, an end token, and the markers that are control tokens."""

    eos_token_id = EOS
    bos_token_id = None

    def __init__(self, control):
        self.ids = {text: EOS + 1 + i for i, text in enumerate(control)}
        self.tokens = [bytes([i]) for i in range(256)] + [b"<eos>"] + [text.encode() for text in control]
        self.special_token_ids = list(range(EOS, len(self.tokens)))
        self._pattern = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)")

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())

    def encode(self, text):
        ids, at = [], 0
        for found in self._pattern.finditer(text):
            ids += [*text[at : found.start()].encode(), self.ids[found[0]]]
            at = found.end()
        return ids + list(text[at:].encode())


def control_of(answer_format, *, is_control):
    """The markers that would be control tokens: none, or all that look like it."""
    return [m for m in answer_format.markers if re.fullmatch(r"<[^ =\"]+>|\[[A-Z_/]+\]", m)] if is_control else []


class Grammar:
    def __init__(self, answer_format, *, is_control, tools=TOOLS, **options):
        self.vocabulary = Vocabulary(control_of(answer_format, is_control=is_control))
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self.vocabulary))
        lark = answer_format.call_grammar(tools, control_tokens=self.vocabulary.ids, **options)
        self.grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(self.grammar, self.tokenizer)
        assert not failed, f"{messages}\n{lark}"

    def takes(self, text):
        """Whether the text is a whole answer."""
        matcher = llguidance.LLMatcher(self.tokenizer, self.grammar, log_level=0)
        ids = self.vocabulary.encode(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def begins(self, text):
        """Whether an answer may begin like this."""
        matcher = llguidance.LLMatcher(self.tokenizer, self.grammar, log_level=0)
        ids = self.vocabulary.encode(text)
        return matcher.try_consume_tokens(ids) == len(ids)


@pytest.fixture(scope="module", params=[(n, c) for n in FORCED for c in (False, True)], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request):
    name, is_control = request.param
    return name, FORMATS[name], is_control


def test_required_takes_calls_alone(case):
    name, answer_format, is_control = case
    grammar = Grammar(answer_format, is_control=is_control, parallel=False, required=True)
    for calls in GOOD:
        assert grammar.takes(WRITE[name](calls)), calls
    for calls in WRONG:
        assert not grammar.takes(WRITE[name](calls)), calls
    assert not grammar.begins("Hello")
    assert not grammar.takes("")
    if name != "harmony":
        assert not grammar.takes(WRITE[name]([*GOOD[0], *GOOD[2]]))


def test_parallel_takes_several(case):
    name, answer_format, is_control = case
    if name == "harmony":
        return
    grammar = Grammar(answer_format, is_control=is_control, parallel=True, required=True)
    for calls in (GOOD[0], [*GOOD[0], *GOOD[2]], [*GOOD[2], *GOOD[1], *GOOD[0]]):
        assert grammar.takes(WRITE[name](calls)), calls
    assert not grammar.takes(WRITE[name]([*GOOD[0], *WRONG[0]]))
    assert grammar.takes(WRITE[name](GOOD[0] * MAX_CALLS))
    assert not grammar.takes(WRITE[name](GOOD[0] * (MAX_CALLS + 1)))


def test_reasoning_may_come_first(case):
    name, answer_format, is_control = case
    call = WRITE[name](GOOD[0])
    grammar = Grammar(answer_format, is_control=is_control, parallel=False, required=True)
    inside = Grammar(answer_format, is_control=is_control, parallel=False, required=True, opens_reasoning=True)
    reasoning = answer_format.reasoning
    following = "<|start|>assistant" if name == "harmony" else "\n\n"
    thoughts = f"Hm, a {{ and a [.\n{reasoning.end}{following}"
    assert grammar.takes(reasoning.begin + thoughts + call)
    assert inside.takes(thoughts + call)
    assert not inside.takes(call)
    assert not grammar.takes(reasoning.begin + thoughts)


@pytest.mark.parametrize("parallel", [False, True])
def test_auto_takes_text_and_calls(case, parallel):
    name, answer_format, is_control = case
    grammar = Grammar(answer_format, is_control=is_control, parallel=parallel, required=False)
    text = "Let me look.\n"
    said = f"<|channel|>final<|message|>{text}" if name == "harmony" else text
    assert grammar.takes(said)
    before = {"harmony": f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant", "llama": ""}.get(
        name, text
    )
    for calls in GOOD:
        assert grammar.takes(before + WRITE[name](calls)), calls
    for calls in WRONG:
        assert not grammar.takes(before + WRITE[name](calls)), calls
    if name not in ("harmony", "llama"):
        several = text + WRITE[name](GOOD[0]) + "\n" + WRITE[name](GOOD[2])
        assert grammar.takes(several) == parallel


def test_a_call_of_what_the_grammar_takes_is_read(case):
    """A walk of random tokens that the grammar allows is an answer with a call that obeys the schema."""
    name, answer_format, is_control = case
    grammar = Grammar(answer_format, is_control=is_control, parallel=False, required=True, tools=[TOOLS[0]])
    text = WRITE[name](GOOD[1])
    assert grammar.takes(text)
    parts = read(answer_format, [text], TOOLS)
    assert [(n, json.loads(a)) for n, a in calls_in(parts)] == GOOD[1]


def test_a_model_that_was_taught_no_calls_can_be_forced():
    plain = format_of("{{ messages }}")
    assert (plain.name, plain.calls) == ("plain", HERMES)
    grammar = Grammar(plain, is_control=False, parallel=False, required=True)
    assert grammar.takes(WRITE["hermes"](GOOD[0]))


def test_gemma_cannot_be_forced():
    with pytest.raises(InvalidParameter, match="cannot be forced") as caught:
        FORMATS["gemma"].call_grammar(TOOLS, parallel=True, required=True, control_tokens={})
    assert caught.value.parameter == "tool_choice"


@pytest.mark.parametrize("name", ["hermes", "harmony"])
def test_no_tools_no_grammar(name):
    with pytest.raises(InvalidParameter, match="there are no tools") as caught:
        FORMATS[name].call_grammar([], parallel=True, required=True, control_tokens={})
    assert caught.value.parameter == "tool_choice"


@settings(max_examples=50, deadline=None)
@given(name=st.text(min_size=1, max_size=10), key=st.text(max_size=10), enum=st.lists(st.text(max_size=5), min_size=1))
@pytest.mark.parametrize("format_name", ["hermes", "qwen_xml", "glm", "lfm", "harmony"])
def test_no_name_breaks_a_grammar(format_name, name, key, enum):
    schema = {"type": "object", "properties": {key: {"type": "string", "enum": enum}, "x": {"format": "odd"}}}
    Grammar(
        FORMATS[format_name],
        is_control=True,
        parallel=True,
        required=False,
        tools=[{"name": name, "parameters": schema}],
    )


def test_formats_here_are_the_tables():
    assert IS_RAW
    assert all(isinstance(f, AnswerFormat) for f in FORMATS.values())
    assert read(FORMATS["hermes"], ["x"]) == [TextPart("x")]
