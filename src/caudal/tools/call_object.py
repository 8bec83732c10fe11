"""A call as one JSON object: {"name": …, "arguments": {…}} and its relatives."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.tools.literals import JSON, LiteralReader
from caudal.tools.tape import Malformed, Tape, Truncated

if TYPE_CHECKING:
    from collections.abc import Container

    from caudal.tools.calls import Calls
    from caudal.tools.tape import Steps

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
_WORD = re.compile(r"[\w.+\-$]+")


@dataclass(frozen=True)
class BareRule:
    """What makes an object without an opener a call and no answer in JSON: it has arguments, and a tool's name.

    Attributes:
        names: of the tools.
        strict: it has no other members; the call is given out when the object is complete.
    """

    names: Container[str]
    strict: bool


@dataclass
class _Found:
    """What was read of an object so far. Held arguments wait for the name, or for the object's end."""

    name: str = ""
    held: list[str] | None = None
    begun: bool = False


class CallObjectReader:
    """Reads one object.

    Args:
        tape: where the object comes next.
        calls: gets the call. Its arguments come while they arrive if the name stood before them.
        stops: texts that end a call even if the object is not closed.
        bare: of an object that has no opener.
    """

    def __init__(self, tape: Tape, calls: Calls, stops: tuple[str, ...] = (), bare: BareRule | None = None) -> None:
        self._tape = tape
        self._calls = calls
        self._stops = stops
        self._bare = bare
        self._gives_early = bare is None or not bare.strict
        self._found = _Found()

    def read(self) -> Steps[None]:
        """Read it.

        Raises:
            Malformed: it is not a call, or stopped being one.
            Truncated: the answer ended first.
        """
        yield from self._members()
        found = self._found
        if not found.begun:
            if self._bare is not None and (found.held is None or found.name not in self._bare.names):
                raise Malformed
            self._begin()
        self._calls.end()

    def _members(self) -> Steps[None]:
        yield from self._tape.expect("{")
        while True:
            next_one = yield from self._tape.skip_space()
            if next_one == ",":
                self._tape.take(1)
            elif next_one == "}":
                self._tape.take(1)
                return
            elif self._found.begun and self._stops and (yield from self._tape.at(*self._stops)):
                return
            else:
                yield from self._member()

    def _member(self) -> Steps[None]:
        reader = LiteralReader(self._tape, _drop)
        if not (yield from self._tape.peek()):
            raise Truncated
        key = json.loads((yield from reader.key(":")))
        yield from self._tape.skip_space()
        yield from self._tape.expect(":")
        next_one = yield from self._tape.skip_space()
        found = self._found
        if key == "function" and next_one == "{":
            yield from self._members()
        elif key in _NAME_KEYS and not found.name and not found.begun:
            yield from self._name()
        elif key in _ARGUMENT_KEYS and not found.begun and found.held is None:
            yield from self._arguments(next_one)
        elif self._bare is not None and self._bare.strict:
            raise Malformed
        else:
            yield from LiteralReader(self._tape, _drop, JSON, self._stops).value()

    def _name(self) -> Steps[None]:
        pieces: list[str] = []
        yield from LiteralReader(self._tape, pieces.append).value()
        name = json.loads("".join(pieces))
        if not isinstance(name, str) or not name or (self._bare is not None and name not in self._bare.names):
            raise Malformed
        self._found.name = name
        if self._found.held is not None and self._gives_early:
            self._begin()

    def _arguments(self, next_one: str) -> Steps[None]:
        found = self._found
        if next_one == "{" and found.name and self._gives_early:
            found.held = []
            self._begin()
            yield from LiteralReader(self._tape, self._calls.arguments, JSON, self._stops).value()
            return
        pieces: list[str] = []
        yield from LiteralReader(self._tape, pieces.append, JSON, self._stops).value()
        found.held = [_as_object("".join(pieces))]
        if found.name and self._gives_early:
            self._begin()

    def _begin(self) -> None:
        self._calls.begin(self._found.name)
        self._found.begun = True
        for text in self._found.held or ():
            self._calls.arguments(text)


def _as_object(text: str) -> str:
    """Return arguments written as a string, or as null, as an object. Raises Malformed if they are something else."""
    if text.startswith("{"):
        return text
    if text == "null":
        return "{}"
    if not text.startswith('"'):
        raise Malformed
    inner = json.loads(text).strip()
    if not inner:
        return "{}"
    read = literal_text(inner)
    if read is None or not read.startswith("{"):
        raise Malformed
    return read


def literal_text(text: str) -> str | None:
    """Return the JSON of a text that is one value, None if it is not."""
    tape = Tape()
    tape.feed(text)
    tape.end()
    pieces: list[str] = []
    try:
        for _ in LiteralReader(tape, pieces.append).value():
            pass
        for _ in tape.skip_space():
            pass
    except (Malformed, Truncated):
        return None
    return None if tape.rest else "".join(pieces)


def _drop(_: str) -> None:
    """Take text for nothing."""
