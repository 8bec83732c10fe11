# ruff: noqa: RUF001 - DeepSeek writes a vertical bar of its own
"""What published chat templates teach is found in them, and the calls that they write are read."""

import json

import pytest
from vocabularies import TEMPLATE_FILES, files_or_skip

from caudal.errors import TemplateError
from caudal.tokenizer.chat_template import ChatTemplate
from caudal.tools.formats import format_of
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

# The format and the reasoning's beginning that each published template must be found to teach.
EXPECTED = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command_r", "<|START_THINKING|>"),
    "GLM-4.6": ("glm", "<think>"),
    "HuggingFaceTB-SmolLM3-3B": ("plain", "<think>"),
    "Kimi-K2-Instruct": ("kimi", None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "<think>"),
    "Qwen3-Coder": ("qwen_xml", None),
    "Qwen3.5-4B": ("qwen_xml", "<think>"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v3.1", "<think>"),
    "deepseek-ai-DeepSeek-V4": ("dsml_tool_calls", "<think>"),
    "google-gemma-2-2b-it": ("plain", None),
    "google-gemma-4-31B-it": ("gemma", "<|channel>thought"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama", None),
    "microsoft-Phi-3.5-mini-instruct": ("plain", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral_list", None),
    "openai-gpt-oss-120b": ("harmony", "<|channel|>analysis<|message|>"),
}
SHOWS_NO_CALLS = {"HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "c"}, "days": {"type": "integer", "description": "n"}},
    "required": ["city"],
}
TOOL = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": TOOL}]
ARGUMENTS = [{"city": 'São "Paulo"', "days": 2, "o": {"a": [1, True, "x"]}}, {"city": "Rome"}]
QUESTION = {"role": "user", "content": "How is the weather?"}
# Where a template's answer ends: the first of these in it, which the engine would have stopped at.
ENDS = (
    "<|END_OF_TURN_TOKEN|>", "<|observation|>", "<|im_end|>", "<eos>", "<｜end▁of▁sentence｜>", "<|tool_response>",
    "<turn|>", "<|end_of_text|>", "<|eot_id|>", "<|call|>",
)  # fmt: skip


def assistant(num_calls, **more):
    calls = [
        {"id": f"abcdefgh{i}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(a)}}
        for i, a in enumerate(ARGUMENTS[:num_calls])
    ]
    return {"role": "assistant", "content": "Let me look.", "tool_calls": calls} | more


def answer_start(prompt, whole, markers):
    """Where the two part; before a marker that they share if the prompt goes on with another one."""
    common = next((i for i in range(len(prompt)) if prompt[i] != whole[i]), len(prompt))
    if common == len(prompt):
        return common
    reaching = [at for m in markers if (at := whole.rfind(m, 0, common + len(m))) >= 0 and at + len(m) >= common]
    return min([common, *reaching])


def rendered(template, num_calls, **more):
    """Return the prompt, and the answer with calls that the template writes behind it; None if it refuses."""
    prompt = template.render([QUESTION], tools=TOOLS)
    try:
        whole = template.render([QUESTION, assistant(num_calls, **more)], tools=TOOLS, add_generation_prompt=False)
    except TemplateError:
        return None
    common = answer_start(prompt, whole, format_of(template.source).markers)
    answer = whole[common:]
    return prompt[:common], answer[: min((answer.index(end) for end in ENDS if end in answer), default=len(answer))]


def parts_of(answer_format, answer, *, opens_reasoning):
    parser = answer_format.parser(tools=[TOOL], reasoning=True, opens_reasoning=opens_reasoning)
    return [part for character in answer for part in parser.push(character)] + parser.finish()


@pytest.mark.parametrize("path", files_or_skip(TEMPLATE_FILES, "templates"))
def test_the_format_is_found(path):
    found = format_of(path.read_text("utf-8"))
    assert (found.name, found.reasoning.begin if found.reasoning else None) == EXPECTED[path.stem]
    assert format_of(path.read_text("utf-8")) is found


@pytest.mark.parametrize("path", files_or_skip(TEMPLATE_FILES, "templates"))
def test_the_calls_that_a_template_writes_are_read(path):
    if path.stem in SHOWS_NO_CALLS:
        return
    source = path.read_text("utf-8")
    template = ChatTemplate(source, "<bos>", "<eos>")
    forms = [(n, more) for more in ({}, {"content": "", "reasoning_content": "Hm."}) for n in (2, 1)]
    answers = [(n, found) for n, more in forms if (found := rendered(template, n, **more)) is not None]
    assert answers
    for num_calls, (prompt, answer) in answers:
        answer_format = format_of(source)
        opens = answer_format.opens_reasoning(prompt[-60:])
        parts = parts_of(answer_format, answer, opens_reasoning=opens)
        names = [part.name for part in parts if isinstance(part, CallBegin)]
        if path.stem == "openai-gpt-oss-120b":  # it writes the first call only
            num_calls = 1  # noqa: PLW2901
        assert names == ["get_weather"] * num_calls, answer
        for i in range(num_calls):
            text = "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == i)
            assert json.loads(text) == ARGUMENTS[i], answer
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        assert text in ("", "Let me look."), answer
        thought = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
        assert thought in ("", "Hm.", "Let me look."), answer


@pytest.mark.parametrize("path", files_or_skip(TEMPLATE_FILES, "templates"))
def test_a_prompt_opens_reasoning_where_the_template_does(path):
    source = path.read_text("utf-8")
    prompt = ChatTemplate(source, "<bos>", "<eos>").render([QUESTION])
    assert format_of(source).opens_reasoning(prompt[-60:]) == (path.stem == "Qwen3.5-4B")


@pytest.mark.parametrize(
    ("source", "name", "reasoning"),
    [
        ("", "plain", None),
        ("{% if tools %}<|tool_call|>", "granite", None),
        ("<|tool|>{{ message['tools'] }}<|/tool|>", "phi", None),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function\n```json</think>", "deepseek_v3", "<think>"),
        ("'<｜DSML｜function_calls>'<think>", "dsml_function_calls", "<think>"),
        ("<tool_call>{name}<arg_key>k</arg_key><arg_value></think>", "glm_4.7", "<think>"),
        ("<minimax:tool_call><invoke name=<think>", "minimax", "<think>"),
        ("<seed:tool_call><function=f><seed:think>", "seed", "<seed:think>"),
        ("List of tools: <|tool_list_start|>[", "lfm", None),
        ("<|python_start|>", "llama_pythonic", None),
        ("<function_calls>", "olmo", None),
        ("[TOOL_CALLS][ARGS][THINK]", "mistral", "[THINK]"),
        ("{% set think = '<think>' %}", "plain", "<think>"),
    ],
)
def test_formats_without_a_published_template_here(source, name, reasoning):
    found = format_of(source)
    assert (found.name, found.reasoning.begin if found.reasoning else None) == (name, reasoning)


@pytest.mark.parametrize(
    ("tail", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\nso far", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<think>old</think>x<|im_end|><|im_start|>assistant\n<think>\n", True),
        ("", False),
    ],
)
def test_a_prompt_opens_reasoning_by_its_end(tail, opens):
    assert format_of("<tool_call></think>").opens_reasoning(tail) == opens


def test_markers_are_what_the_parser_must_see():
    assert format_of("<tool_call></think>").markers == ("<tool_call>", "</tool_call>", "<think>", "</think>")
    assert "[TOOL_CALLS]" in format_of("[TOOL_CALLS]").markers
    assert "<|message|>" in format_of("<|channel|><|message|>").markers
    assert all(marker for path in TEMPLATE_FILES for marker in format_of(path.read_text("utf-8")).markers)
