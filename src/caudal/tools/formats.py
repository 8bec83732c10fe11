"""How a model writes calls of tools and reasoning, found in its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from caudal.tools import harmony
from caudal.tools.call_grammar import harmony_grammar, marked_grammar
from caudal.tools.harmony import HarmonyParser
from caudal.tools.marked_parser import MarkedParser
from caudal.tools.parts import PlainParser
from caudal.tools.reasoning import Reasoning
from caudal.tools.table import CALLS, DROPPED, HERMES, REASONING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from caudal.tools.calls import CallSyntax
    from caudal.tools.parts import AnswerParser

_ANALYSIS = Reasoning(begin="<|channel|>analysis<|message|>", end=harmony.END)


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """How a model answers.

    Attributes:
        name: of the syntax of calls; "plain" if the template teaches none.
        calls: that syntax. A model that was taught none is read, and may be forced, as Hermes models are.
        reasoning: how reasoning is marked; None if the template knows of none.
        dropped: markers that mean nothing to the reader.
        is_harmony: gpt-oss's messages; the other attributes then only describe them.
    """

    name: str
    calls: CallSyntax
    reasoning: Reasoning | None = None
    dropped: tuple[str, ...] = ()
    is_harmony: bool = False

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens and that the parser must see."""
        if self.is_harmony:
            return harmony.MARKERS
        texts = (*self.calls.markers, *(self.reasoning.markers if self.reasoning else ()), *self.dropped)
        return tuple(dict.fromkeys(texts))

    def parser(self, *, tools: Sequence[Mapping[str, Any]], reasoning: bool, opens_reasoning: bool) -> AnswerParser:
        """Return a parser for one answer.

        Args:
            tools: functions with name and maybe parameters, a JSON schema. Without any, calls are text.
            reasoning: tell reasoning from text; otherwise it is text with its markers.
            opens_reasoning: the prompt ended inside of reasoning.
        """
        schemas = {str(tool.get("name")): schema_of(tool) for tool in tools}
        if self.is_harmony:
            return HarmonyParser(schemas, separates_reasoning=reasoning, opens_reasoning=opens_reasoning)
        if not schemas and not self.dropped and not (reasoning and self.reasoning):
            return PlainParser()
        return MarkedParser(
            self.calls if schemas else None,
            schemas,
            self.reasoning,
            separates_reasoning=reasoning,
            dropped=self.dropped,
            opens_reasoning=opens_reasoning,
        )

    def opens_reasoning(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends so leaves the model inside of its reasoning."""
        return self.reasoning is not None and self.reasoning.is_open(prompt_tail)

    def call_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel: bool,
        required: bool,
        control_tokens: Mapping[str, int],
        opens_reasoning: bool = False,
    ) -> str:
        """Return a grammar for answers with calls, in llguidance's dialect of Lark.

        An answer may begin with reasoning. Then comes a call, if `required`, and nothing else; otherwise text with
        calls in it. Arguments obey the tools' schemas.

        Args:
            tools: those that may be called.
            parallel: several calls may come; otherwise the answer ends with the first.
            required: there must be a call.
            control_tokens: which of `markers` are control tokens of the vocabulary, with their ids.
            opens_reasoning: the prompt ended inside of reasoning.

        Raises:
            InvalidParameter: there are no tools, or calls in this format cannot be described by a grammar.
        """
        schemas = {str(tool.get("name")): schema_of(tool) for tool in tools}
        if self.is_harmony:
            return harmony_grammar(
                schemas, control_tokens, parallel=parallel, required=required, opens_reasoning=opens_reasoning
            )
        return marked_grammar(
            self.calls,
            schemas,
            control_tokens,
            reasoning=self.reasoning,
            parallel=parallel,
            required=required,
            opens_reasoning=opens_reasoning,
        )


def schema_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    parameters = tool.get("parameters")
    schema = dict(parameters) if isinstance(parameters, dict) else {}
    if not any(key in schema for key in ("type", "$ref", "anyOf", "oneOf", "allOf")):
        schema["type"] = "object"
    return schema


@lru_cache(maxsize=64)
def format_of(template_source: str) -> AnswerFormat:
    """Return the format that a chat template teaches."""
    if "<|channel|>" in template_source and "<|message|>" in template_source:
        return AnswerFormat(name="harmony", calls=HERMES, reasoning=_ANALYSIS, is_harmony=True)
    calls = next((row for texts, row in CALLS if all(text in template_source for text in texts)), None)
    reasoning = next((row for texts, row in REASONING if all(text in template_source for text in texts)), None)
    dropped = tuple(
        marker for texts, row in DROPPED if all(text in template_source for text in texts) for marker in row
    )
    return AnswerFormat(
        name=calls.name if calls else "plain", calls=calls or HERMES, reasoning=reasoning, dropped=dropped
    )
