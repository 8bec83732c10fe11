"""The formats that models are taught, one row each, and by what in a chat template each is known."""

# ruff: noqa: RUF001 - DeepSeek writes a vertical bar of its own

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from caudal.tools.gemma_calls import GemmaCalls
from caudal.tools.grammar_text import Shape
from caudal.tools.named_json import NamedJson
from caudal.tools.pythonic import Pythonic
from caudal.tools.reasoning import Reasoning
from caudal.tools.tagged_json import TaggedJson
from caudal.tools.tagged_values import TaggedValues

if TYPE_CHECKING:
    from caudal.tools.calls import CallSyntax

HERMES = TaggedJson(
    name="hermes",
    openers=("<tool_call>",),
    closer="</tool_call>",
    bare="known",
    around=Shape(trigger="<tool_call>", open="\n", close="\n</tool_call>", gap="\n"),
)
QWEN_XML = TaggedValues(
    name="qwen_xml",
    section=("<tool_call>", "</tool_call>"),
    call=("<function=", "</function>"),
    after_name=">",
    key=("<parameter=", ">"),
    value=("", "</parameter>"),
    lines=True,
    joint="\n",
)
SEED = TaggedValues(
    name="seed",
    section=("<seed:tool_call>", "</seed:tool_call>"),
    call=("<function=", "</function>"),
    after_name=">",
    key=("<parameter=", ">"),
    value=("", "</parameter>"),
    joint="\n",
)
LLAMA = TaggedJson(
    name="llama",
    openers=("<|python_tag|>",),
    bare="call",
    arguments_key="parameters",
    around=Shape(trigger="", between="; "),
    python=True,
)
LLAMA_PYTHONIC = Pythonic(name="llama_pythonic", openers=("<|python_start|>",), closer="<|python_end|>", bare=True)
LFM = Pythonic(name="lfm", openers=("<|tool_call_start|>",), closer="<|tool_call_end|>", bare=True)
OLMO = Pythonic(name="olmo", openers=("<function_calls>",), closer="</function_calls>", brackets=False)
MISTRAL_LIST = TaggedJson(
    name="mistral_list",
    openers=("[TOOL_CALLS]",),
    around=Shape(trigger="[TOOL_CALLS]", open="[", between=", ", close="]"),
)
MISTRAL_ARGS = NamedJson(
    name="mistral",
    call=("[TOOL_CALLS]", ""),
    after_name="[ARGS]",
    after_id="[CALL_ID]",
    written="{name}[ARGS]{arguments}",
    listed=MISTRAL_LIST,
)
_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
DEEPSEEK_V3 = NamedJson(
    name="deepseek_v3",
    section=_DEEPSEEK_SECTION,
    call=_DEEPSEEK_CALL,
    before_name="<｜tool▁sep｜>",
    written="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
    between="\n",
)
DEEPSEEK_V31 = NamedJson(
    name="deepseek_v3.1",
    section=_DEEPSEEK_SECTION,
    call=_DEEPSEEK_CALL,
    before_name="<｜tool▁sep｜>",
    written="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
)
KIMI = NamedJson(
    name="kimi",
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=("<|tool_call_begin|>", "<|tool_call_end|>"),
    after_name="<|tool_call_argument_begin|>",
    affixes=re.compile(r"(?:functions\.)?(?P<name>.+?)(?::[0-9]+)?"),
    written="<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
)
FUNCTIONARY = NamedJson(
    name="functionary",
    call=("<function=", "</function>"),
    after_name=">",
    written="{name}>{arguments}</function>",
)
SOLAR = NamedJson(
    name="solar",
    section=("<|tool_calls|>", "<|calls|>"),
    call=("<|tool_call:begin|>", "<|tool_call:end|>"),
    before_name="<|tool_call:name|>",
    after_name="<|tool_call:args|>",
    written="<|tool_call:begin|>call{number}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>",
)


def _dsml(section: str) -> TaggedValues:
    """DeepSeek V3.2 calls the section function_calls, V4 tool_calls."""
    return TaggedValues(
        name=f"dsml_{section}",
        section=(f"<｜DSML｜{section}>", f"</｜DSML｜{section}>"),
        call=('<｜DSML｜invoke name="', "</｜DSML｜invoke>"),
        after_name='">',
        key=('<｜DSML｜parameter name="', '"'),
        value=("", "</｜DSML｜parameter>"),
        typed=True,
        joint="\n",
        between="\n",
    )


def _invoke(name: str, prefix: str, section: str) -> TaggedValues:
    """MiniMax M2's tags, and those of others who write invoke."""
    return TaggedValues(
        name=name,
        section=(f"<{section}>", f"</{section}>"),
        call=(f'<{prefix}invoke name="', f"</{prefix}invoke>"),
        after_name='">',
        key=(f'<{prefix}parameter name="', '">'),
        value=("", f"</{prefix}parameter>"),
        joint="\n",
        between="\n",
    )


IFM = TaggedValues(
    name="ifm",
    section=("<ifm|tool_calls>", "</ifm|tool_calls>"),
    call=("<ifm|tool_call>", "</ifm|tool_call>"),
    key=("<ifm|arg_key>", "</ifm|arg_key>"),
    value=("<ifm|arg_value>", "</ifm|arg_value>"),
    joint="\n",
    between="\n",
)


def _glm(name: str, joint: str) -> TaggedValues:
    """GLM 4.5 and 4.6 write line ends between the tags, 4.7 none."""
    return TaggedValues(
        name=name,
        call=("<tool_call>", "</tool_call>"),
        key=("<arg_key>", "</arg_key>"),
        value=("<arg_value>", "</arg_value>"),
        joint=joint,
        gap=joint,
    )


DSML_V32, DSML_V4 = _dsml("function_calls"), _dsml("tool_calls")
MINIMAX = _invoke("minimax", "", "minimax:tool_call")
ATEM = _invoke("atem", "atem:", "atem:function_calls")
GLM, GLM_47 = _glm("glm", "\n"), _glm("glm_4.7", "")
MINICPM = TaggedValues(
    name="minicpm",
    call=('<function name="', "</function>"),
    after_name='">',
    key=('<param name="', '">'),
    value=("", "</param>"),
)
GRANITE = TaggedJson(
    name="granite",
    openers=("<|tool_call|>", "<tool_call>"),
    closer="</tool_call>",
    around=Shape(trigger="<|tool_call|>", open="[", between=", ", close="]"),
)
PHI = TaggedJson(
    name="phi",
    openers=("<|tool_call|>", "functools["),
    closer="<|/tool_call|>",
    around=Shape(trigger="<|tool_call|>", open="[", between=", ", close="]<|/tool_call|>"),
)
COMMAND_R = TaggedJson(
    name="command_r",
    openers=("<|START_ACTION|>",),
    closer="<|END_ACTION|>",
    arguments_key="parameters",
    name_key="tool_name",
    before_name='"tool_call_id": "{number}", ',
    around=Shape(trigger="<|START_ACTION|>", open="[\n    ", between=",\n    ", close="\n]<|END_ACTION|>"),
)
NEMOTRON = TaggedJson(
    name="nemotron",
    openers=("<TOOLCALL>",),
    closer="</TOOLCALL>",
    around=Shape(trigger="<TOOLCALL>", open="[", between=", ", close="]</TOOLCALL>"),
)
APRIEL = TaggedJson(
    name="apriel",
    openers=("<tool_calls>",),
    closer="</tool_calls>",
    around=Shape(trigger="<tool_calls>", open="[", between=", ", close="]</tool_calls>"),
)
MINIMAX_M1 = TaggedJson(
    name="minimax_m1",
    openers=("<tool_calls>",),
    closer="</tool_calls>",
    around=Shape(trigger="<tool_calls>", open="\n", between="\n", close="\n</tool_calls>"),
)
GIGACHAT = TaggedJson(name="gigachat", openers=("<|function_call|>",), around=Shape(trigger="<|function_call|>"))
GEMMA = GemmaCalls()

# What a template must contain, and what it then teaches; the first row that fits counts.
CALLS: tuple[tuple[tuple[str, ...], CallSyntax], ...] = (
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("｜DSML｜", "function_calls"), DSML_V32),
    (("｜DSML｜",), DSML_V4),
    (("<｜tool▁calls▁begin｜>", "```json"), DEEPSEEK_V3),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK_V31),
    (("<|tool_calls_section_begin|>",), KIMI),
    (("<|tool_call:begin|>",), SOLAR),
    (("<minimax:tool_call>",), MINIMAX),
    (("<atem:function_calls>",), ATEM),
    (("<seed:tool_call>",), SEED),
    (("<ifm|tool_calls>",), IFM),
    (("<|tool_call>call:",), GEMMA),
    (("<arg_key>", "<tool_call>", "</arg_key>\n"), GLM),
    (("<arg_key>", "<tool_call>", "</arg_key>\\n"), GLM),
    (("<arg_key>", "<tool_call>"), GLM_47),
    (("<function=", "<parameter="), QWEN_XML),
    (("<function=", "</function>"), FUNCTIONARY),
    (("<function name=", "<param name="), MINICPM),
    (("<|tool_call_start|>",), LFM),
    (("<|tool_list_start|>",), LFM),
    (("List of tools: [",), LFM),
    (("<|START_ACTION|>",), COMMAND_R),
    (("<|function_call|>",), GIGACHAT),
    (("<|/tool_call|>",), PHI),
    (("<|/tool|>",), PHI),
    (("<|tool_call|>",), GRANITE),
    (("<TOOLCALL>",), NEMOTRON),
    (("<tool_calls>[",), APRIEL),
    (("<tool_calls>",), MINIMAX_M1),
    (("<function_calls>",), OLMO),
    (("<tool_call>",), HERMES),
    (("<|python_start|>",), LLAMA_PYTHONIC),
    (("[func_name1(",), LLAMA_PYTHONIC),
    (("<|python_tag|>",), LLAMA),
    (('{"name": function name, "parameters"',), LLAMA),
)
REASONING: tuple[tuple[tuple[str, ...], Reasoning], ...] = (
    (("[THINK]",), Reasoning(begin="[THINK]", end="[/THINK]", anywhere=True)),
    (("<|START_THINKING|>",), Reasoning(begin="<|START_THINKING|>", end="<|END_THINKING|>", anywhere=True)),
    (("<ifm|think>",), Reasoning(begin="<ifm|think>", end="</ifm|think>")),
    (("<mm:think>",), Reasoning(begin="<mm:think>", end="</mm:think>")),
    (("<seed:think>",), Reasoning(begin="<seed:think>", end="</seed:think>")),
    (("<|channel>",), Reasoning(begin="<|channel>thought", end="<channel|>", anywhere=True)),
    (("Here is my thought process:",), Reasoning(begin="Here is my thought process:", end="Here is my response:")),
    (("[BEGIN FINAL RESPONSE]",), Reasoning(begin="Here are my reasoning steps:", end="[BEGIN FINAL RESPONSE]")),
    (("</think>",), Reasoning(begin="<think>", end="</think>")),
    (("<think>",), Reasoning(begin="<think>", end="</think>")),
)
DROPPED = (
    (("<|START_RESPONSE|>",), ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    (("<|START_TEXT|>",), ("<|START_TEXT|>", "<|END_TEXT|>")),
    (("<response>", "<think>", "<|start_of_role|>"), ("<response>", "</response>")),
)
