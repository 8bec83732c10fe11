"""Whether a grammar can be used: what a process of its own finds out (see checker), as this may take for ever."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from caudal.constrain.limits import parser_limits
from caudal.constrain.matcher import GrammarError, Matcher, TokenTable, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTES = 256


def finished(grammar: str) -> str:
    """Return a grammar in which GBNF has become Lark. Raises GrammarError if it cannot be read."""
    whole = json.loads(grammar)
    if not any("gbnf" in member for member in whole["grammars"]):
        return grammar
    for member in whole["grammars"]:
        if "gbnf" in member:
            member["lark_grammar"] = _from_gbnf(member.pop("gbnf"))
    return json.dumps(whole, ensure_ascii=False)


def _from_gbnf(text: str) -> str:
    try:
        return str(gbnf_to_lark(text))
    except RecursionError as error:
        message = "it is nested too deeply"
        raise GrammarError(message) from error
    except Exception as error:  # the converter raises whatever happens to it
        raise GrammarError(reason_of(str(error)) or "it is no GBNF") from error


def try_grammar(grammar: str, table: TokenTable) -> str:
    """Return the finished grammar, after everything that is done with it before the first token has worked.

    Raises:
        GrammarError: it cannot be used, and why.
    """
    grammar = finished(grammar)
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=parser_limits())
    if failed:
        raise GrammarError(reason_of(messages[0]))
    mask = bytearray(table.num_mask_bytes)
    Matcher(table, grammar).first_mask(mask)
    return grammar


def byte_table(vocab_size: int, control_tokens: Mapping[str, int]) -> TokenTable:
    """Return a stand-in for a model's vocabulary: the same control tokens under the same ids, and single bytes."""
    size = max([vocab_size, *(token_id + 1 for token_id in control_tokens.values())])
    special = set(control_tokens.values())
    tokens = [b""] * (size + _BYTES + 1)
    for text, token_id in control_tokens.items():
        tokens[token_id] = text.encode()
    for byte in range(_BYTES):
        tokens[size + byte] = bytes([byte])
    end = size + _BYTES
    tokens[end] = b"<|end|>" if "<|end|>" not in control_tokens else b"<|the end|>"
    return TokenTable(tokens, sorted({*special, end}), [end], len(tokens))
