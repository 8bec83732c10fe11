"""Chat templates: published ones render, messages are brought into shape, hostile templates are stopped."""

import json
import time

import pytest
from vocabularies import TEMPLATE_FILES, files_or_skip

from caudal.errors import InvalidParameter, TemplateError
from caudal.tokenizer.chat_template import CHATML, ChatTemplate
from caudal.tokenizer.template_limits import TemplateLimits

SYSTEM = {"role": "system", "content": "Be SYSTEMTEXT."}
USER = {"role": "user", "content": "Is USERTEXT?"}
ANSWER = {"role": "assistant", "content": "It is ANSWERTEXT."}
AGAIN = {"role": "user", "content": "And SECONDTEXT?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1234567890", "type": "function", "function": {"name": "get_rain", "arguments": '{"town": "León"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1234567890", "content": "RESULTTEXT"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_rain",
            "description": "Rain in a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string", "description": "x"}}},
        },
    }
]
# Templates that know nothing of tools, or of lists of tools.
NO_TOOL_LIST = {"SmolLM3", "gemma-2", "Phi-3.5", "DeepSeek-V3.1"}
NO_TOOL_CALLS = {"SmolLM3", "gemma-2", "Phi-3.5"}
ENDS_WITHOUT_PROMPT = {"command-r7b", "Mistral"}


def is_one_of(path, names):
    return any(name in path.name for name in names)


@pytest.mark.parametrize("path", files_or_skip(TEMPLATE_FILES, "templates"))
def test_published_templates(path):
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<BOS>", "<EOS>")

    def shown(messages, **kwargs):
        text = template.render(messages, **kwargs)
        for message in messages:
            assert (message["content"] or "").strip() in text
        return text

    for messages in ([USER], [SYSTEM, USER], [USER, ANSWER, AGAIN], [USER, ANSWER, SYSTEM, AGAIN], [USER, AGAIN]):
        with_prompt = shown(messages)
        without = shown(messages, add_generation_prompt=False)
        assert with_prompt.index("TEXT") > 0
        if not is_one_of(path, ENDS_WITHOUT_PROMPT):
            assert len(with_prompt) > len(without) or "Phi-3.5" in path.name
            assert with_prompt.endswith(with_prompt[len(without) :])
    if not is_one_of(path, NO_TOOL_LIST):
        assert "get_rain" in shown([SYSTEM, USER], tools=TOOLS)
    if not is_one_of(path, NO_TOOL_CALLS):
        text = shown([USER, CALL, RESULT], tools=TOOLS)
        assert "León" in text
        assert text.index("USERTEXT") < text.index("León") < text.index("RESULTTEXT")
        shown([USER, CALL, RESULT, ANSWER, AGAIN], tools=TOOLS)


@pytest.mark.parametrize("path", files_or_skip(TEMPLATE_FILES, "templates"))
def test_continue_final_message(path):
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<BOS>", "<EOS>")
    text = template.render([USER, {"role": "assistant", "content": "Once upon a "}], continue_final_message=True)
    assert text.endswith("Once upon a ")
    assert "USERTEXT" in text


def test_chatml():
    template = ChatTemplate(CHATML)
    assert template.render([SYSTEM, USER]) == (
        "<|im_start|>system\nBe SYSTEMTEXT.<|im_end|>\n"
        "<|im_start|>user\nIs USERTEXT?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_templates_may_use():
    def render(source, **kwargs):
        return ChatTemplate(source, "<s>", "</s>").render([USER], **kwargs)

    assert (
        render("{{ bos_token }}{{ x|tojson }}{{ eos_token }}", x={"b": "<é>", "a": [1]})
        == '<s>{"b": "<é>", "a": [1]}</s>'
    )
    assert render("{{ x|tojson(indent=2) }}", x=[1]) == "[\n  1\n]"
    assert render("{{ ('{\"a\": 1}'|from_json).a }}") == "1"
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert (
        render("{% for i in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}")
        == "1/2False 2/2True "
    )
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{% set l = [] %}{% set _ = l.append('a') %}{% set _ = l.append('b') %}{{ l.pop(0) ~ l[0] }}") == "ab"
    assert (
        render("{{ '{}-{}'.format(1, 'a') }} {{ '%05.1f|%s' % (2, 'b') }} {{ 'a-b'.split('-')|join('+') }}")
        == "1-a 002.0|b a+b"
    )
    assert render("{{ documents is none }} {{ tools is none }} {{ flag }}", flag="f") == "True True f"
    assert render("{% if true %}\n  a\n  {% endif %}\n") == "  a\n"
    assert (
        render("{{ 'a\nb'|indent(2) }} {{ [1, 2]|sum }} {{ 'aa'|replace('a', 'b') }} {{ 1.26|round(1) }}")
        == "a\n  b 3 bb 1.3"
    )


def as_seen(messages, source="{{ messages|tojson }}"):
    return json.loads(ChatTemplate(source).render(messages))


def test_messages_are_normalised():
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    assert as_seen([{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\nb\nc"}]
    (call, result) = as_seen([USER, CALL, RESULT])[1:]
    assert call["content"] == ""
    assert call["tool_calls"][0]["function"]["arguments"] == {"town": "León"}
    assert result["name"] == "get_rain"
    assert as_seen([{"role": "developer", "content": "a"}, USER])[0]["role"] == "system"
    assert as_seen([{**ANSWER, "reasoning": "r"}])[0]["reasoning_content"] == "r"
    assert "tool_calls" not in as_seen([{**ANSWER, "tool_calls": None}])[0]


def test_messages_given_are_never_changed():
    messages = [SYSTEM, USER, CALL, RESULT]
    before = json.dumps(messages)
    ChatTemplate("{{ messages|tojson }}").render(messages)
    with pytest.raises(TemplateError, match="may not change its messages"):
        ChatTemplate("{% set _ = messages.append(1) %}").render(messages)
    with pytest.raises(TemplateError, match="may not change its messages"):
        ChatTemplate("{% set _ = tools[0].function.parameters.required.append(1) %}").render(
            messages, tools=[{"function": {"parameters": {"required": ["a"]}}}]
        )
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ([{"content": "a"}], r"messages\[0\] has no role"),
        ([USER, {"role": "user", "content": 3}], r"messages\[1\].content is int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "type 'image_url'.*text parts only"),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], "entry without a function"),
    ],
)
def test_malformed_messages(messages, words):
    with pytest.raises(InvalidParameter, match=words):
        ChatTemplate(CHATML).render(messages)


STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)


def test_system_and_neighbours_are_merged_when_the_template_insists():
    template = ChatTemplate(STRICT)
    assert template.render([SYSTEM, USER]) == "[user:Be SYSTEMTEXT.\n\nIs USERTEXT?]"
    assert (
        template.render([USER, AGAIN, ANSWER]) == "[user:Is USERTEXT?\n\nAnd SECONDTEXT?][assistant:It is ANSWERTEXT.]"
    )
    with pytest.raises(TemplateError, match="refused the messages: must alternate"):
        template.render([ANSWER, USER])


def test_a_system_message_is_never_dropped_in_silence():
    ignores = "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}"
    assert "SYSTEMTEXT" in ChatTemplate(ignores).render([SYSTEM, USER])
    first_only = "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}" + ignores
    assert "SYSTEMTEXT" in ChatTemplate(first_only).render([USER, ANSWER, SYSTEM, AGAIN])


def test_templates_that_want_parts_or_text_arguments():
    parts = "{% for m in messages %}{% for p in m.content if p is mapping %}{{ p.text }}{% endfor %}{% endfor %}"
    assert ChatTemplate(parts).render([USER]) == "Is USERTEXT?"
    calls = "{% for c in m.tool_calls or [] %}{{ '>' + c.function.arguments }}{% endfor %}"
    text = "{% for m in messages %}" + calls + "{% endfor %}"
    assert ChatTemplate(text).render([USER, CALL]) == '>{"town": "León"}'


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% for a in range(1000000000) %}{% endfor %}",
        "{{ range(100000)|map('string')|map('upper')|list|length }}" * 100,
        "{% for x in range(100000) if false %}{% endfor %}" * 500,
        "{% for a in range(100000) %}" + "x" * 10000 + "{% endfor %}",
        "{% set x %}{% for a in range(100000) %}" + "x" * 100000 + "{% endfor %}{% endset %}",
        "{% filter upper %}{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}{% endfilter %}",
        "{% set s = 'x' * 10000000 %}" + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(100)),
        "{{ 'a' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{% set a = ([[1] * 1000] * 1000) * 1000 %}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 1000000000) }}",
        "{{ ('%' ~ '9' * 9 ~ 'd') % 1 }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a'|center(1000000000) }}",
        "{{ []|slice(1000000000)|list }}",
        "{{ lipsum(n=100000000) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ strftime_now('%999999999d') }}",
        "{{ (9 ** 999) ** 999 }}",
        "{{ ([[1] * 100] * 100)|sum(start=[]) }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ messages.__class__.__base__ }}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ nothing.here }}",
        "{% unknown %}",
        "x" * (1 << 20) + "x",
    ],
    ids=lambda source: source[:50],
)
def test_hostile_templates_are_stopped(source):
    template = ChatTemplate(source, limits=TemplateLimits(time_s=0.3))
    started = time.perf_counter()
    with pytest.raises(TemplateError):
        template.render([USER])
    assert time.perf_counter() - started < 3


@pytest.mark.parametrize(
    "step",
    [
        "ns.s ~ ns.s",
        "ns.s + ns.s",
        "[ns.s, ns.s]",
        "(ns.s, ns.s)",
        "{'a': ns.s, 'b': ns.s}",
        "dict(a=ns.s, b=ns.s)",
        "ns.s.replace('a', 'aa')",
        "ns.s|replace('a', 'aa')",
        "[ns.s, ns.s]|join('')",
        "ns.s.join([ns.s, ns.s, ns.s])",
        "'%s%s' % (ns.s, ns.s)",
        "'{0}{0}'.format(ns.s)",
        "'%s%s'|format(ns.s, ns.s)",
        "ns.s.upper() ~ ns.s|lower",
    ],
)
def test_doubling_is_stopped(step):
    loop = "{% set ns = namespace(s='a') %}{% for i in range(90) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s }}"
    source = loop.replace("STEP", step)
    with pytest.raises(TemplateError, match="built"):
        ChatTemplate(source).render([USER])


def test_doubling_by_append_is_stopped():
    source = (
        "{% set ns = namespace(l=['a']) %}{% for i in range(60) %}{% set n = [] %}{% set _ = n.append(ns.l) %}"
        "{% set _ = n.append(ns.l) %}{% set ns.l = n %}{% endfor %}{{ ns.l|tojson }}"
    )
    with pytest.raises(TemplateError, match="built"):
        ChatTemplate(source).render([USER])


def test_output_limit_and_long_conversations():
    with pytest.raises(TemplateError, match="longer than 100 characters"):
        ChatTemplate(CHATML, limits=TemplateLimits(output_chars=100)).render([{"role": "user", "content": "x" * 200}])
    many = [USER, ANSWER] * 2000 + [{"role": "user", "content": "x" * 1_000_000}]
    assert len(ChatTemplate(CHATML).render(many)) > 1_000_000


def test_the_meter_cannot_be_replaced():
    assert ChatTemplate("{{ flag }}").render([USER], **{"the meter": 3, "flag": "f"}) == "f"
