"""Calls as JSON objects, one or a list of them, after a marker: Hermes, Mistral, Granite, Phi, Command R, Llama."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caudal.tools.call_object import BareRule, CallObjectReader
from caudal.tools.pythonic import read_python_call
from caudal.tools.tape import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.calls import Calls
    from caudal.tools.grammar_text import Shape, Writer
    from caudal.tools.tape import Steps, Tape

_FENCES = ("```json", "```")
_SEPARATORS = re.compile(r"[ \t\r\n,;]+")


@dataclass(frozen=True, kw_only=True)
class TaggedJson:
    """A syntax of this kind.

    Attributes:
        name: of the syntax.
        openers: begin one object, a list of objects, or several objects.
        closer: ends them; a missing one is no error.
        bare: "" if there must be an opener; "call" if the answer may begin with the object itself, as long as it has
            arguments and the name of a tool; "known" if it may, alone or in a Markdown fence, as long as it has no
            other members either. Models that are taught tags forget them like this.
        arguments_key: what the arguments are called.
        before_name: members before the name, in a grammar; {number} is any number.
        around: what the grammar puts around calls.
        python: after the first opener may also come a call such as `search.call(query="x")`.
    """

    name: str
    openers: tuple[str, ...]
    closer: str = ""
    bare: str = ""
    arguments_key: str = "arguments"
    name_key: str = "name"
    before_name: str = ""
    around: Shape
    python: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""
        return tuple(text for text in (*self.openers, self.closer) if text)

    def read(self, tape: Tape, calls: Calls, opener: str) -> Steps[None]:
        """Read what follows an opener, as CallSyntax says."""
        next_one = yield from tape.skip_space()
        if self.python and next_one and next_one not in "{[":
            yield from read_python_call(tape, calls, self._stops)
            return
        is_list = opener.endswith("[") or bool((yield from tape.accept("[")))
        yield from tape.skip_space()
        yield from self._objects(tape, calls)
        if is_list:
            yield from tape.accept("]")
            yield from tape.skip_space()
        if self.closer:
            yield from tape.accept(self.closer)

    def read_bare(self, tape: Tape, calls: Calls) -> Steps[None]:
        """Read calls at the answer's beginning, as CallSyntax says."""
        if not self.bare:
            return
        fence = (yield from tape.accept(*_FENCES)) if self.bare == "known" else ""
        if (yield from tape.skip_space()) != "{":
            raise Malformed
        if self.bare == "known":
            rule = BareRule(names=calls.schemas, strict=True)
            yield from CallObjectReader(tape, calls, bare=rule).read()
            while (yield from tape.skip_space()) == "{":
                yield from CallObjectReader(tape, calls, bare=rule).read()
        else:
            yield from self._objects(tape, calls, BareRule(names=calls.schemas, strict=False))
        if fence:
            yield from tape.accept("```")

    @property
    def _stops(self) -> tuple[str, ...]:
        return (self.closer,) if self.closer else ()

    def _objects(self, tape: Tape, calls: Calls, bare: BareRule | None = None) -> Steps[None]:
        while True:
            yield from CallObjectReader(tape, calls, self._stops, bare).read()
            yield from tape.copy_run(_SEPARATORS, len)
            if (yield from tape.peek()) != "{":
                return

    def shape(self) -> Shape:
        """Return what a grammar puts around calls."""
        return self.around

    def call_rule(self, writer: Writer, name: str, schema: Mapping[str, Any], before: str = "") -> str:
        """Return the grammar's text for one call, with `before` in front of it."""
        *begin, last = f"{before}{{{self.before_name}".split("{number}")
        last += f'"{self.name_key}": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": '
        return f"{writer.numbered([*begin, last])} {writer.json(schema)} {writer.text('}')}"
