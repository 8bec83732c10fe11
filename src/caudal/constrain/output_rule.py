"""What users may ask of an answer's form, and llguidance's grammar for it. Needs no llguidance: text in, text out.

A grammar is the text {"grammars": [...]} that llguidance reads. A member is {"json_schema": ...}, {"lark_grammar":
...}, or, until `finish.finished` has replaced it, {"gbnf": ...}.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md, docs/json_schema.md
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "lark"]
MAX_GRAMMAR_CHARS = 1 << 18
MAX_CHOICES = 10_000
# Enough for an indented document. Without a limit, small models write line ends for ever.
_SPACE = r"( |\n{1,2}[ \t]{0,20})?"
_LARK_START = re.compile(r"^\s*(%llguidance\b|start\s*:)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class OutputRule:
    """What an answer must look like.

    Attributes:
        kind: "json_schema" (value: the schema as a dict, a bool, or JSON text), "json_object" (any JSON object; no
            value), "regex" (Rust's syntax; the whole answer matches), "choice" (a list of texts), "grammar" (GBNF, or
            Lark if it has a rule `start:`), "lark" (llguidance's dialect).
        value: see kind.
        parameter: the request's field that asked for it, for messages.
        strict: refuse a schema with keywords that no grammar can enforce, instead of ignoring those keywords.
        any_whitespace: JSON may have spaces and line ends between its tokens.
    """

    kind: Kind
    value: Any = None
    parameter: str = "response_format"
    strict: bool = False
    any_whitespace: bool = True


def grammar_of(rule: OutputRule) -> str:
    """Return the grammar of a rule.

    Raises:
        InvalidParameter: the value has another form than its kind needs, or is too large.
    """
    if rule.kind not in get_args(Kind):
        message = f"{rule.parameter} is of kind {rule.kind!r}; expected one of {', '.join(get_args(Kind))}"
        raise InvalidParameter(message, parameter=rule.parameter)
    if rule.kind in ("json_schema", "json_object"):
        member: dict[str, Any] = {"json_schema": _schema(rule)}
    elif rule.kind == "choice":
        member = {"lark_grammar": _choice(rule)}
    elif rule.kind == "regex":
        member = {"lark_grammar": f"start: /{_lark_regex(_text(rule))}/"}
    elif rule.kind == "lark" or _LARK_START.search(_text(rule)):
        member = {"lark_grammar": _text(rule)}
    else:
        member = {"gbnf": _text(rule)}
    try:
        grammar = json.dumps({"grammars": [member]}, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError) as error:
        message = f"{rule.parameter} is nested too deeply, or holds what JSON cannot ({type(error).__name__})"
        raise InvalidParameter(message, parameter=rule.parameter) from error
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"{rule.parameter} has {len(grammar)} characters; expected at most {MAX_GRAMMAR_CHARS}"
        raise InvalidParameter(message, parameter=rule.parameter)
    return grammar


def _schema(rule: OutputRule) -> dict[str, Any]:
    """Return a schema with the options that llguidance reads in it; a user's own options do not count."""
    schema = {"type": "object"} if rule.kind == "json_object" else rule.value
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (RecursionError, ValueError) as error:
            message = f"{rule.parameter} is not JSON ({error}); expected a JSON schema"
            raise InvalidParameter(message, parameter=rule.parameter) from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        message = f"{rule.parameter} has a schema that is {_shown(schema)}; expected a JSON object"
        raise InvalidParameter(message, parameter=rule.parameter)
    options: dict[str, Any] = {"lenient": not rule.strict, "coerce_one_of": True}
    if rule.any_whitespace:
        options["whitespace_pattern"] = _SPACE
    else:
        options["whitespace_flexible"] = False
    return {**schema, "x-guidance": options}


def _choice(rule: OutputRule) -> str:
    """Return a grammar whose one terminal is any of the texts: one lexeme, however many they are."""
    texts = rule.value
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
        message = f"{rule.parameter} is {_shown(texts)}; expected a list of texts with at least one"
        raise InvalidParameter(message, parameter=rule.parameter)
    if len(texts) > MAX_CHOICES:
        message = f"{rule.parameter} has {len(texts)} choices; expected at most {MAX_CHOICES}"
        raise InvalidParameter(message, parameter=rule.parameter)
    return "start: CHOICE\nCHOICE: " + " | ".join(quoted(text) for text in dict.fromkeys(texts))


def _text(rule: OutputRule) -> str:
    if not isinstance(rule.value, str):
        message = f"{rule.parameter} is {_shown(rule.value)}; expected a text"
        raise InvalidParameter(message, parameter=rule.parameter)
    return rule.value


def _lark_regex(pattern: str) -> str:
    """Return a pattern as it stands between the slashes of a Lark terminal."""
    escaped = re.sub(
        r"\\.|/|\n", lambda m: {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(m[0], m[0]), pattern, flags=re.DOTALL
    )
    return escaped or "(?:)"


def quoted(text: str) -> str:
    """Return a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def literal(text: str, control_tokens: Mapping[str, int]) -> str:
    """Return an expression of Lark for exactly this text, whose control tokens are those tokens."""
    pieces = [text]
    if control_tokens:
        longest_first = sorted(control_tokens, key=len, reverse=True)
        pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    written = [f"<[{control_tokens[p]}]>" if p in control_tokens else quoted(p) for p in pieces if p]
    return " ".join(written) or quoted("")


def after(before: Sequence[str], grammar: str, rules: str) -> str:
    """Return the grammar of answers that have `before`, expressions of Lark, in front of what another allows.

    Args:
        before: expressions, all of which come first, in this order.
        grammar: as `grammar_of` and `lark` return it, and without parts of its own.
        rules: that `before` uses.
    """
    (member,) = json.loads(grammar)["grammars"]
    first = {"lark_grammar": f"start: {' '.join([*before, '@answer'])}\n{rules}"}
    return json.dumps({"grammars": [first, {**member, "name": "answer"}]}, ensure_ascii=False)


def either(grammars: Sequence[str]) -> str:
    """Return the grammar of answers that one of several grammars allows, of which only one has parts of its own."""
    names, parts = [], []
    for index, grammar in enumerate(grammars):
        first, *others = json.loads(grammar)["grammars"]
        names.append(f"@way{index}")
        parts += [{**first, "name": f"way{index}"}, *others]
    return json.dumps({"grammars": [{"lark_grammar": f"start: {' | '.join(names)}"}, *parts]}, ensure_ascii=False)


def lark(text: str) -> str:
    """Return a Lark grammar as a grammar."""
    return json.dumps({"grammars": [{"lark_grammar": text}]}, ensure_ascii=False)
