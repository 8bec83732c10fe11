"""Gemma 4's calls: `<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter
from caudal.tools.literals import Dialect, LiteralReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.calls import Calls
    from caudal.tools.grammar_text import Shape, Writer
    from caudal.tools.tape import Steps, Tape

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"[^\s<>{}\"]+")
_DIALECT = Dialect(raw_quote=_QUOTE, word=re.compile(r"[^,:{}\[\]<\"']+"), bare_keys=True, bare_strings=True)


@dataclass(frozen=True, kw_only=True)
class GemmaCalls:
    """This syntax; there is one."""

    name: str = "gemma"
    openers: tuple[str, ...] = (_OPEN,)
    markers: tuple[str, ...] = (_OPEN, _CLOSE, _QUOTE)

    def read(self, tape: Tape, calls: Calls, opener: str) -> Steps[None]:  # noqa: ARG002 - as CallSyntax says
        """Read what follows an opener, as CallSyntax says."""
        yield from tape.skip_space()
        yield from tape.accept("call:")
        name = yield from tape.word(_NAME)
        yield from tape.expect("{")
        calls.begin(name)
        yield from LiteralReader(tape, calls.arguments, _DIALECT, (_CLOSE,)).members("}", ":")
        calls.end()
        yield from tape.skip_space()
        yield from tape.accept(_CLOSE)

    def read_bare(self, tape: Tape, calls: Calls) -> Steps[None]:  # noqa: ARG002 - as CallSyntax says
        """Read nothing: these calls have openers."""
        yield from ()

    def shape(self) -> Shape:
        """Raise InvalidParameter: values in this syntax are no JSON, so no schema can bind them."""
        message = "this model writes its calls in a way that cannot be forced; use tool_choice 'auto' or 'none'"
        raise InvalidParameter(message, parameter="tool_choice")

    def call_rule(self, writer: Writer, name: str, schema: Mapping[str, Any], before: str = "") -> str:  # noqa: ARG002
        """Raise what `shape` raises."""
        raise AssertionError(self.shape())
