"""Stand-in until the branch with the parsers is merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.tools.parts import AnswerParser, PlainParser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AnswerFormat:
    """How a model writes."""

    name = "plain"
    markers: tuple[str, ...] = ()
    reasoning: Any = None
    is_harmony = False

    def opens_reasoning(self, prompt_tail: str) -> bool:
        """Return False."""
        return False

    def parser(self, *, tools: Sequence[Mapping[str, Any]], reasoning: bool, opens_reasoning: bool) -> AnswerParser:
        """Return a parser."""
        return PlainParser()

    def call_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel: bool,
        required: bool,
        control_tokens: Mapping[str, int],
        opens_reasoning: bool = False,
    ) -> str:
        """Return that there is none."""
        return ""


def format_of(template_source: str) -> AnswerFormat:
    """Return how a model with this template writes."""
    return AnswerFormat()
