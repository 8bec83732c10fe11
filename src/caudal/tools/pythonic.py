"""Calls written as Python would: `[get_weather(city="Paris", days=2), now()]`. Read as text, never evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caudal.tools.coercion import members_of
from caudal.tools.grammar_text import Shape, Writer
from caudal.tools.literals import PYTHON, LiteralReader
from caudal.tools.tape import SPACES, Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.calls import Calls
    from caudal.tools.tape import Steps, Tape

_NAME = re.compile(r"[\w.\-]+")
_BUILT_IN = ".call"  # Llama's own tools are called as brave_search.call(query="…")


def read_python_call(tape: Tape, calls: Calls, stops: tuple[str, ...], *, known: bool = False) -> Steps[None]:
    """Read `name(key=value, …)`.

    Args:
        tape: where the call comes next.
        calls: gets the call.
        stops: texts that end calls.
        known: only a call of one of the tools is one.

    Raises what CallSyntax.read raises.
    """
    name = (yield from tape.word(_NAME)).removesuffix(_BUILT_IN)
    if known and name not in calls.schemas:
        raise Malformed
    yield from tape.expect("(")
    next_one = yield from tape.skip_space()
    if next_one != ")":
        first = yield from tape.word(_NAME)
        space: list[str] = []
        yield from tape.copy_run(SPACES, space.append)
        if (yield from tape.peek()) != "=":  # a value without a name
            raise Malformed
        tape.unread(first + "".join(space))
    calls.begin(name)
    yield from LiteralReader(tape, calls.arguments, PYTHON, stops).members(")", "=")
    calls.end()


@dataclass(frozen=True, kw_only=True)
class Pythonic:
    """A syntax of this kind.

    Attributes:
        name: of the syntax.
        openers: begin calls.
        closer: ends them; a missing one is no error.
        bare: the answer may begin with `[`, as long as a call of a tool follows.
        brackets: calls stand in `[]` with commas between them; otherwise each has a line.
    """

    name: str
    openers: tuple[str, ...] = ()
    closer: str = ""
    bare: bool = False
    brackets: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""
        return tuple(text for text in (*self.openers, self.closer) if text)

    def read(self, tape: Tape, calls: Calls, opener: str) -> Steps[None]:  # noqa: ARG002 - as CallSyntax says
        """Read what follows an opener, as CallSyntax says."""
        yield from tape.skip_space()
        is_list = bool((yield from tape.accept("[")))
        yield from self._calls(tape, calls, is_list=is_list)
        yield from tape.skip_space()
        if self.closer:
            yield from tape.accept(self.closer)

    def read_bare(self, tape: Tape, calls: Calls) -> Steps[None]:
        """Read calls at the answer's beginning, as CallSyntax says."""
        if not self.bare:
            return
        yield from tape.skip_space()
        yield from tape.expect("[")
        yield from self._calls(tape, calls, is_list=True, known=True)

    def _calls(self, tape: Tape, calls: Calls, *, is_list: bool, known: bool = False) -> Steps[None]:
        stops = (self.closer,) if self.closer else ()
        while True:
            yield from tape.skip_space()
            yield from read_python_call(tape, calls, stops, known=known)
            next_one = yield from tape.skip_space()
            if next_one == ",":
                tape.take(1)
                next_one = yield from tape.skip_space()
            if is_list and next_one == "]":
                tape.take(1)
                return
            if not _NAME.match(next_one):
                return

    def shape(self) -> Shape:
        """Return what a grammar puts around calls."""
        open_text, close, between = ("[", "]", ", ") if self.brackets else ("\n", "\n", "\n")
        trigger = self.openers[0] if self.openers else ""
        return Shape(trigger=trigger, open=open_text, between=between, close=f"{close}{self.closer}")

    def call_rule(self, writer: Writer, name: str, schema: Mapping[str, Any], before: str = "") -> str:
        """Return the grammar's text for one call. Values are JSON, which is read as Python's literals are."""
        members = [
            (f"{writer.text(f'{key}=')} {writer.json(value)}", required) for key, value, required in members_of(schema)
        ]
        inside = writer.separated(members, writer.text(", ")) if members else ""
        return f"{writer.text(f'{before}{name}(')} {inside} {writer.text(')')}"
