"""What an answer must look like, from any API, as the grammar that the engine gets.

An API's handler makes an OutputRule of its own fields, and `grammar_for` does the rest: it lets the model's reasoning
come first, lets tools be called, and has the grammar tried before the engine sees it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from caudal.constrain.output_rule import OutputRule, after, either, grammar_of, lark, literal
from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from concurrent.futures import Future

    from caudal.constrain.check_process import CheckResult
    from caudal.server.call import Call
    from caudal.server.conversation import ChatPrompt
    from caudal.server.loaded_model import LoadedModel

__all__ = ["OutputRule", "grammar_for"]

_TEXT = r"TEXT: /(.|\n)*/"
_SPACE = r"SPACE: /[ \t\r\n]{0,8}/"


async def grammar_for(
    rule: OutputRule | None, model: LoadedModel, prompt: ChatPrompt | None = None, *, call: Call
) -> str:
    """Return the grammar of an answer, for `new_answer`; "" if it may be anything.

    Args:
        rule: what was asked for, if something was.
        model: who answers.
        prompt: of a chat. Reasoning may then come before what the rule says, and its tools may be called: they must
            be if the conversation says so, and then the rule says nothing.
        call: the request. A grammar is not tried any longer when its client has left.

    Raises:
        InvalidParameter: the grammar cannot be used; names the field.
        EngineUnavailable: it could not be tried.
        Overloaded: so many are being tried, of this key or in all, that this one has to wait.
        ClientDisconnect: the client has left.
    """
    calls = await _calls(rule, model, prompt, call)
    if rule is None or (prompt is not None and prompt.conversation.tool_choice.mode == "required" and calls):
        return calls
    answer = await _tried(grammar_of(rule), model, rule.parameter, call)
    if prompt is not None:
        answer = _after_reasoning(answer, model, prompt)
    return either([answer, calls]) if calls else answer


async def _calls(rule: OutputRule | None, model: LoadedModel, prompt: ChatPrompt | None, call: Call) -> str:
    """Return the grammar of answers that call tools; "" if none is needed.

    It is when a tool must be called, or has a strict schema, or only one call may come, or else the rule would keep
    calls out.
    """
    if prompt is None:
        return ""
    chat = prompt.conversation
    choice = chat.tool_choice
    if not chat.tools or choice.mode == "none":
        return ""
    is_strict = any(tool.get("strict") for tool in chat.tools)
    is_required = choice.mode == "required"
    if not (is_required or is_strict or rule is not None or not chat.parallel_tool_calls):
        return ""
    text = prompt.format.call_grammar(
        [tool for tool in chat.tools if choice.name in (None, tool.get("name"))],
        parallel=chat.parallel_tool_calls,
        required=is_required or rule is not None,
        control_tokens=model.tokenizer.control_tokens,
        opens_reasoning=prompt.opens_reasoning,
    )
    if not text:
        return ""
    try:
        return await _tried(lark(text), model, "tools", call)
    except InvalidParameter:
        if is_required or is_strict:
            raise
        return ""  # nobody asked for more than an attempt


async def _tried(grammar: str, model: LoadedModel, parameter: str, call: Call) -> str:
    """Return the grammar as the engine takes it, if it can be used."""
    trial = model.grammars.check(grammar, call.tenant)
    try:
        result = trial.result() if trial.done() else await call.while_there(_result_of(trial))
    finally:
        trial.cancel()  # nobody waits for it any more
    if result.error is not None:
        message = f"{parameter} cannot be used: {result.error}"
        raise InvalidParameter(message, parameter=parameter)
    return result.grammar


async def _result_of(trial: Future[CheckResult]) -> CheckResult:
    return await asyncio.wrap_future(trial)


def _after_reasoning(grammar: str, model: LoadedModel, prompt: ChatPrompt) -> str:
    """Return the grammar with the model's reasoning in front, if it reasons."""
    reasoning = prompt.format.reasoning
    if reasoning is None:
        return grammar
    tokens = model.tokenizer.control_tokens
    end, begin = literal(reasoning.end, tokens), literal(reasoning.begin, tokens)
    # Up to a token that no text holds, or up to the first time that the text holds the marker.
    rest = f"rest: TEXT {end}" if reasoning.end in tokens else f"rest[lazy]: TEXT {end}"
    if prompt.format.is_harmony:
        turn = literal("<|start|>assistant", tokens)
        thoughts = f"rest {turn} (thought {turn})*" if prompt.opens_reasoning else f"(thought {turn})*"
        before = [thoughts, literal("<|channel|>final<|message|>", tokens)]
    else:
        before = ["rest SPACE" if prompt.opens_reasoning else "(thought SPACE)?"]
    return after(before, grammar, "\n".join([rest, f"thought: {begin} rest", _TEXT, _SPACE]))
