"""Calls as a name and a JSON object with markers around them: Mistral, DeepSeek, Kimi, Functionary, Solar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caudal.tools.grammar_text import Shape, Writer
from caudal.tools.literals import JSON, LiteralReader
from caudal.tools.tape import Malformed, Markers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.calls import Calls
    from caudal.tools.tagged_json import TaggedJson
    from caudal.tools.tape import Steps, Tape

_NAME = re.compile(r"[^\s<>\[\]{}\"'`]+")
_FENCES = ("```json", "```")


@dataclass(frozen=True, kw_only=True)
class NamedJson:
    """A syntax of this kind.

    Attributes:
        name: of the syntax.
        section: begins and ends the list of calls; both "" if there is no list.
        call: begins and ends one call; the end may be "".
        before_name: stands between something that does not matter, such as a type or an id, and the name.
        after_name: stands between the name and the arguments.
        after_id: in its place may stand this, an id, and then `after_name`.
        affixes: what belongs to the format in the text where the name is; the name is the group "name".
        written: a call in a grammar, with {name}, {arguments} and maybe {number}.
        between: stands between two calls in a grammar.
        listed: read instead if the calls turn out to be a list of JSON objects.
    """

    name: str
    section: tuple[str, str] = ("", "")
    call: tuple[str, str]
    before_name: str = ""
    after_name: str = ""
    after_id: str = ""
    affixes: re.Pattern[str] = re.compile("(?P<name>.*)")
    written: str
    between: str = ""
    listed: TaggedJson | None = None

    @property
    def openers(self) -> tuple[str, ...]:
        """Texts that begin a call wherever they stand."""
        return (self.section[0] or self.call[0],)

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""
        texts = (*self.section, *self.call, self.before_name, self.after_id, self.after_name)
        return tuple(dict.fromkeys(text for text in texts if text))

    def read(self, tape: Tape, calls: Calls, opener: str) -> Steps[None]:
        """Read what follows an opener, as CallSyntax says."""
        next_one = yield from tape.skip_space()
        if self.listed is not None and next_one and next_one in "[{":
            yield from self.listed.read(tape, calls, opener)
            return
        if self.section[0]:
            yield from tape.expect(self.call[0])
        while True:
            yield from self._call(tape, calls)
            yield from tape.skip_space()
            if not (yield from tape.accept(self.call[0])):
                break
        if self.section[1]:
            yield from tape.accept(self.section[1])

    def _call(self, tape: Tape, calls: Calls) -> Steps[None]:
        name = yield from self._name(tape)
        stops = tuple(text for text in (self.call[1], self.section[1]) if text)
        yield from tape.skip_space()
        yield from tape.accept(*_FENCES)
        next_one = yield from tape.skip_space()
        if next_one != "{" and not (stops and (yield from tape.at(*stops))):
            raise Malformed
        calls.begin(name)
        if next_one == "{":
            yield from LiteralReader(tape, calls.arguments, JSON, stops).value()
        calls.end()
        yield from tape.skip_space()
        yield from tape.accept("```")
        yield from tape.skip_space()
        if self.call[1]:
            yield from tape.accept(self.call[1])

    def _name(self, tape: Tape) -> Steps[str]:
        ends = tuple(dict.fromkeys(text for text in (self.before_name, self.after_id, self.after_name) if text))
        yield from tape.skip_space()
        name = yield from tape.word(_NAME)
        end = yield from tape.accept(*ends)
        if end and end == self.before_name and _NAME.match((yield from tape.peek())):
            name = yield from tape.word(_NAME)
            end = yield from tape.accept(*ends)
        if end and end == self.after_id:
            yield from tape.copy_until(Markers([self.after_name, "{"]), len, take=False)
            yield from tape.accept(self.after_name)
        found = self.affixes.fullmatch(name)
        return found["name"] if found else name

    def read_bare(self, tape: Tape, calls: Calls) -> Steps[None]:  # noqa: ARG002 - as CallSyntax says
        """Read nothing: these calls have openers."""
        yield from ()

    def shape(self) -> Shape:
        """Return what a grammar puts around calls."""
        if self.section[0]:
            return Shape(trigger=self.section[0], between=self.between, close=self.section[1])
        return Shape(trigger=self.call[0])

    def call_rule(self, writer: Writer, name: str, schema: Mapping[str, Any], before: str = "") -> str:
        """Return the grammar's text for one call, with `before` in front of it."""
        begin, after = self.written.split("{arguments}")
        pieces = [piece.replace("{name}", name) for piece in (before + begin).split("{number}")]
        return f"{writer.numbered(pieces)} {writer.json(schema)} {writer.text(after)}"
