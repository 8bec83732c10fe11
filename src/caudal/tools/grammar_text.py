"""Writes grammars in llguidance's dialect of Lark.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# White space in a value has a limit: a small model that may write line ends for ever does. Keywords of a schema that
# llguidance does not know do not make a tool unusable.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \t\r\n]{0,20}", "lenient": True, "coerce_one_of": True}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What stands around calls.

    Attributes:
        trigger: begins a section of calls; "" if only the answer's beginning does.
        open: follows it.
        between: stands between the calls of one section; None if a section has one call.
        close: ends a section.
        gap: stands between sections, if a section has one call.
    """

    trigger: str
    open: str = ""
    between: str | None = None
    close: str = ""
    gap: str = ""


class Writer:
    """Collects the rules of one grammar.

    Args:
        control_tokens: the vocabulary's control tokens, text to id. In a grammar they are tokens; any other text may
            be made of any tokens.
    """

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._tokens = control_tokens
        self._rules: dict[str, str] = {}  # what stands behind a name, and the name
        by_length = sorted(control_tokens, key=lambda text: (-len(text), text))
        self._split = re.compile("(" + "|".join(map(re.escape, by_length)) + ")") if by_length else None

    def text(self, text: str) -> str:
        """Return an expression for exactly this text; "" for none."""
        pieces = self._split.split(text) if self._split else [text]
        return " ".join(
            f"<[{self._tokens[piece]}]>" if piece in self._tokens else _quoted(piece) for piece in pieces if piece
        )

    def numbered(self, pieces: Sequence[str]) -> str:
        """Return an expression for the pieces with a number between each two."""
        between = f" {self.rule('/[0-9]{1,3}/')} " if len(pieces) > 1 else ""
        return between.join(map(self.text, pieces))

    def rule(self, *alternatives: str, options: str = "") -> str:
        """Add a rule that is one of the expressions, if there is none yet; return its name."""
        body = f"{options}: {' | '.join(a or _quoted('') for a in alternatives)}"
        return self._rules.setdefault(body, f"r{len(self._rules)}")

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return a rule for the JSON values that obey a schema."""
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS})}")

    def until(self, end: str, begin: str = "") -> str:
        """Return an expression for any text after `begin` up to and with the first `end`.

        If there is a control token in `end`, the text ends at this token.
        """
        before = f"{self.text(begin)} " if begin else ""
        token = self._split.search(end) if self._split else None
        if token:
            return f"{before}TEXT {self.text(end[token.start() :])}"
        return before + self.rule(f"TEXT {_quoted(end)}", options="[lazy]")

    def separated(self, members: Sequence[tuple[str, bool]], separator: str) -> str:
        """Return an expression for members in this order, those that are not required maybe left out.

        Args:
            members: each an expression and whether it is required.
            separator: an expression between two members that are there.
        """
        after, first = "", ""  # expressions for what follows a member, and for all with nothing before it
        for member, required in reversed(members):
            rest_after = f" {after}" if after else ""
            one_more, one_first = f"{separator} {member}{rest_after}", f"{member}{rest_after}"
            after = self.rule(one_more) if required else self.rule(one_more, after)
            first = self.rule(one_first) if required else self.rule(one_first, first)
        return first

    def grammar(self, start: str, **terminals: str) -> str:
        """Return the whole grammar, with more terminals if it needs some."""
        return "\n".join(
            [
                "%llguidance {}",
                f"start: {start}",
                *(f"{name}{body}" for body, name in self._rules.items()),
                r"TEXT: /(.|\n)*/",
                r"SPACE: /[ \t\r\n]{0,8}/",
                *(f"{name}: {expression}" for name, expression in terminals.items()),
                "",
            ]
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
