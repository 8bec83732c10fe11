"""Calls whose arguments stand one by one in tags, as raw text: Qwen3-Coder, GLM, MiniMax, DeepSeek's DSML, Seed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caudal.tools.coercion import is_string, json_of, members_of, properties_of
from caudal.tools.grammar_text import Shape, Writer
from caudal.tools.literals import escaped
from caudal.tools.tape import Malformed, Markers, Truncated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.calls import Calls
    from caudal.tools.tape import Sink, Steps, Tape

_NAME = re.compile(r"[^\s<>\"]+")


@dataclass(frozen=True, kw_only=True)
class TaggedValues:
    """A syntax of this kind.

    Attributes:
        name: of the syntax.
        section: begins and ends a list of calls; both "" if there is no list.
        call: begins and ends one call.
        after_name: ends the name.
        key: stands before and after a key.
        value: stands before and after a value. Where DSML says string="true" in it, the value is a string; where it
            says "false", JSON.
        lines: a value stands on lines of its own.
        joint: white space between the tags, in a grammar.
        between: white space between two calls of a section, in a grammar; None if a section has one call.
        gap: white space between two sections, or two calls without one, in a grammar.
    """

    name: str
    section: tuple[str, str] = ("", "")
    call: tuple[str, str]
    after_name: str = ""
    key: tuple[str, str]
    value: tuple[str, str]
    typed: bool = False
    lines: bool = False
    joint: str = ""
    between: str | None = None
    gap: str = "\n"

    @property
    def openers(self) -> tuple[str, ...]:
        """Texts that begin a call wherever they stand. A call without its section counts too."""
        return tuple(text for text in (self.section[0], self.call[0]) if text)

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""
        texts = (*self.section, *self.call, self.after_name, *self.key, *self.value)
        return tuple(dict.fromkeys(text for text in texts if len(text) > 1))

    def read(self, tape: Tape, calls: Calls, opener: str) -> Steps[None]:
        """Read what follows an opener, as CallSyntax says."""
        if opener == self.section[0]:
            yield from tape.skip_space()
            yield from tape.expect(self.call[0])
        while True:
            yield from self._call(tape, calls)
            yield from tape.skip_space()
            if not (yield from tape.accept(self.call[0])):
                break
        if self.section[1]:
            yield from tape.accept(self.section[1])

    def read_bare(self, tape: Tape, calls: Calls) -> Steps[None]:  # noqa: ARG002 - as CallSyntax says
        """Read nothing: these calls have openers."""
        yield from ()

    def _call(self, tape: Tape, calls: Calls) -> Steps[None]:
        yield from tape.skip_space()
        name = yield from tape.word(_NAME)
        yield from tape.skip_space()
        if self.after_name:
            yield from tape.expect(self.after_name)
        elif not (yield from tape.at(self.key[0], self.call[1])):
            raise Malformed if (yield from tape.peek()) else Truncated
        calls.begin(name)
        schema = calls.schemas.get(name, {})
        ends = tuple(text for text in (self.call[1], self.section[1]) if text)
        separator = "{"
        while True:
            yield from tape.skip_space()
            if (yield from tape.at(*ends)):
                break
            if not (yield from tape.at(self.key[0])):
                if not (yield from tape.peek()):
                    raise Truncated
                calls.arguments("{}" if separator == "{" else "}")
                raise Malformed
            yield from self._argument(tape, calls, schema, separator)
            separator = ","
        calls.arguments("{}" if separator == "{" else "}")
        yield from tape.accept(self.call[1])
        calls.end()

    def _argument(self, tape: Tape, calls: Calls, schema: Mapping[str, Any], separator: str) -> Steps[None]:
        """Read one key and its value; the key's tag comes next."""
        pieces: list[str] = []
        yield from tape.accept(self.key[0])
        if not (yield from tape.copy_until(Markers([self.key[1]]), pieces.append)):
            raise Truncated
        key = "".join(pieces)
        type_named = (yield from self._type(tape)) if self.typed else ""
        if self.value[0]:
            yield from tape.skip_space()
            yield from tape.accept(self.value[0])
        member = {"type": "string"} if type_named == "true" else properties_of(schema).get(key)
        write = calls.arguments
        write(f"{separator}{json.dumps(key, ensure_ascii=False)}:")
        if is_string(member, schema):
            write('"')
            if not (yield from self._raw(tape, lambda text: write(escaped(text)))):
                raise Truncated
            write('"')
            return
        pieces = []
        is_whole = yield from self._raw(tape, pieces.append)
        value = "".join(pieces)
        write(json_of(value, {} if type_named == "false" else member, schema) if is_whole else value)
        if not is_whole:
            raise Truncated

    def _raw(self, tape: Tape, sink: Sink) -> Steps[bool]:
        """Read a value's text and its end; return whether there was an end."""
        close: tuple[str, ...] = (self.value[1],)
        ends = close
        if self.lines:
            yield from tape.accept("\n")
            close = (f"\n{self.value[1]}", self.value[1])
            # Models forget the end of a value, but then the next tag begins a line.
            ends = (*close, f"\n{self.key[0]}", f"\n{self.call[1]}")
        end = yield from tape.copy_until(Markers(ends), sink, take=False)
        yield from tape.accept(*close)
        return bool(end)

    def _type(self, tape: Tape) -> Steps[str]:
        """Read DSML's `string="true">` or `string="false">`; return what stands in it, "" if it is not there."""
        pieces: list[str] = []
        yield from tape.copy_until(Markers([">"]), pieces.append)
        return "".join(pieces).strip().removeprefix("string=").strip('"')

    def shape(self) -> Shape:
        """Return what a grammar puts around calls."""
        if not self.section[0]:
            return Shape(trigger=self.call[0], gap=self.gap)
        joint = self.joint or ("\n" if self.between else "")
        return Shape(
            trigger=self.section[0],
            open=joint,
            between=self.between,
            close=joint + self.section[1],
            gap=self.gap,
        )

    def call_rule(self, writer: Writer, name: str, schema: Mapping[str, Any], before: str = "") -> str:
        """Return the grammar's text for one call, with `before` in front of it."""
        begin = before + (self.call[0] if self.section[0] else "") + name + self.after_name + self.joint
        members = [
            (self._member_rule(writer, key, member, schema), required) for key, member, required in members_of(schema)
        ]
        inside = writer.separated(members, "") if members else ""
        return f"{writer.text(begin)} {inside} {writer.text(self.call[1])}"

    def _member_rule(self, writer: Writer, key: str, member: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        line = "\n" if self.lines else ""
        string = is_string(member, root)
        type_named = f' string="{"true" if string else "false"}">' if self.typed else ""
        before_value = self.joint if self.value[0] and not self.lines else ""
        begin = self.key[0] + key + self.key[1] + type_named + before_value + self.value[0] + line
        end = line + self.value[1] + self.joint
        choices = member.get("enum", [member["const"]] if "const" in member else None)
        if string and isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
            return (
                f"{writer.text(begin)} {writer.rule(*(writer.text(choice) for choice in choices))} {writer.text(end)}"
            )
        if string:
            return f"{writer.text(begin)} {writer.until(end)}"
        return f"{writer.text(begin)} {writer.json(member)} {writer.text(end)}"
