"""How much work a grammar may make."""

from __future__ import annotations

from llguidance import LLParserLimits

MASK_TIMEOUT_S = 3.0
"""A request whose grammar takes longer over one token fails."""

MAX_CHECK_BYTES = 2 << 30
"""Memory of the process that prepares grammars which nobody has tried yet."""


def parser_limits() -> LLParserLimits:
    """Return llguidance's own limits: on the size of a grammar, on its lexer's states and on the work of a step."""
    return LLParserLimits(
        max_grammar_size=200_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )
