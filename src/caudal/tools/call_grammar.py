"""Grammars for answers with calls, for constrained decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter
from caudal.tools.grammar_text import Writer
from caudal.tools.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.calls import CallSyntax, Schemas
    from caudal.tools.reasoning import Reasoning

MAX_CALLS = 16
"""Most calls in an answer that must consist of calls: a small model that is forced to call may never stop calling."""
MORE = f"{{0,{MAX_CALLS - 1}}}"


def marked_grammar(
    calls: CallSyntax,
    schemas: Schemas,
    control_tokens: Mapping[str, int],
    *,
    reasoning: Reasoning | None,
    parallel: bool,
    required: bool,
    opens_reasoning: bool,
) -> str:
    """Return the grammar of an answer whose calls and reasoning stand between markers.

    Raises InvalidParameter if there are no tools or the syntax has no grammar.
    """
    _check(schemas)
    writer = Writer(control_tokens)
    shape = calls.shape()
    call = writer.rule(*(calls.call_rule(writer, name, schema) for name, schema in schemas.items()))
    if parallel and shape.between is not None:
        # What stands between two calls is part of the second one: where it begins as a section's end does, nothing
        # decides between the two before both have been read.
        again = writer.rule(*(calls.call_rule(writer, name, schema, shape.between) for name, schema in schemas.items()))
        call = writer.rule(f"{call} {again}{MORE}")
    section = f"{writer.text(shape.open)} {call} {writer.text(shape.close)}"
    start = ""
    if reasoning is not None:
        thoughts = writer.until(reasoning.end, "" if opens_reasoning else reasoning.begin)
        start = f"({thoughts} SPACE)" + ("" if opens_reasoning else "?")
    if required:
        whole = writer.rule(f"{writer.text(shape.trigger)} {section}")
        more = f"({writer.text(shape.gap)} {whole}){MORE}" if parallel and shape.between is None else ""
        return writer.grammar(f"{start} {whole} {more}")
    if not shape.trigger:
        return writer.grammar(f"{start} ({section} | OTHER)?", OTHER=r"/[ \t\r\n]*[^{ \t\r\n](.|\n)*/")
    until = writer.until(shape.trigger)
    whole = writer.rule(f"{until} {section}")
    body = f"{whole}* TEXT" if parallel else f"({whole} | TEXT)"
    return writer.grammar(f"{start} {body}")


def harmony_grammar(
    schemas: Schemas,
    control_tokens: Mapping[str, int],
    *,
    parallel: bool,  # noqa: ARG001 - a call ends an answer of gpt-oss, so there is never a second one
    required: bool,
    opens_reasoning: bool,
) -> str:
    """Return the grammar of an answer in gpt-oss's format, whose prompt ends with `<|start|>assistant`.

    Raises InvalidParameter if there are no tools.
    """
    _check(schemas)
    writer = Writer(control_tokens)
    next_message = writer.text(f"{START}assistant")
    call = writer.rule(
        *(
            f"{writer.text(f'{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}')} {writer.json(schema)}"
            for name, schema in schemas.items()
        )
    )
    end = f"{writer.text(CALL)}?"
    thoughts = writer.rule(f"{writer.until(END, f'{CHANNEL}analysis{MESSAGE}')} {next_message}")
    start = f"{writer.until(END)} {next_message} {thoughts}*" if opens_reasoning else f"{thoughts}*"
    if required:
        return writer.grammar(f"{start} {call} {end}")
    preamble = writer.rule(f"{writer.until(END, f'{CHANNEL}commentary{MESSAGE}')} {next_message}")
    final = f"{writer.text(f'{CHANNEL}final{MESSAGE}')} TEXT"
    return writer.grammar(f"{start} ({preamble} {thoughts}*)* ({call} {end} | {final})")


def _check(schemas: Schemas) -> None:
    if not schemas:
        message = "tool_choice asks for a call, but there are no tools; give tools or leave tool_choice out"
        raise InvalidParameter(message, parameter="tool_choice")
