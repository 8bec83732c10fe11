"""Values as models write them, JSON, Python or Gemma's own way, turned into JSON text while they arrive.

Never evaluated, never nested deeper than MAX_DEPTH, read in linear time. White space between the parts of a value is
left out. What models get wrong and what can only mean one thing is put right: line ends and unescaped quotation marks
in strings, single quotation marks, escapes that JSON does not have, commas too many or too few, Python's True, False
and None, numbers such as `.5`, bare keys. Half a surrogate pair, which no text can hold, becomes U+FFFD.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.tools.tape import SPACE, SPACES, Malformed, Markers, Truncated

if TYPE_CHECKING:
    from caudal.tools.tape import Sink, Steps, Tape

MAX_DEPTH = 100
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_OTHER_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_OTHER_INTEGER = re.compile(r"\+(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"[0-9a-fA-F]+")
WORDS = {
    **{word: word for word in ("true", "false", "null")},
    "True": "true",
    "False": "false",
    "None": "null",
    **dict.fromkeys(("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"), "null"),
}
_PLAIN = {quote: re.compile(rf"[^{quote}\"\\\x00-\x1f]+") for quote in "\"'"}
_ESCAPES = {"x": 2, "u": 4, "U": 8}
_HALVES = range(0xD800, 0xE000)  # of surrogate pairs
_HIGH_HALVES, _LOW_HALVES = _HALVES[:0x400], _HALVES[0x400:]
_NO_CHARACTER = "\\ufffd"  # as an escape, so that it is ASCII like the halves that it replaces


@dataclass(frozen=True)
class Dialect:
    """How values are written.

    Attributes:
        python: tuples, strings in three quotation marks and Python's escapes exist.
        raw_quote: a marker around strings that have no escapes.
        word: what a number, a constant or a bare key consists of.
        bare_keys: keys without quotation marks are the rule.
        bare_strings: a word that is nothing else is a string.
    """

    python: bool = False
    raw_quote: str = ""
    word: re.Pattern[str] = re.compile(r"[\w.+\-$]+")
    bare_keys: bool = False
    bare_strings: bool = False

    @property
    def brackets(self) -> dict[str, str]:
        """Opening brackets and what closes them."""
        return {"{": "}", "[": "]", "(": ")"} if self.python else {"{": "}", "[": "]"}


JSON = Dialect()
PYTHON = Dialect(python=True)


@dataclass(slots=True)
class _Open:
    """A bracket that is not closed yet: what closes it, what closes it in JSON, what stands between key and value."""

    close: str
    json_close: str
    pair: str
    is_empty: bool = True


class LiteralReader:
    """Reads one value and writes it as JSON.

    Args:
        tape: where the value comes next.
        write: takes the JSON text, piece by piece.
        dialect: how the value is written.
        stops: texts that end a call, and with it a value whose brackets were not closed.

    All readings raise Malformed where the text stops being a value; what was written has then been made whole. They
    raise Truncated at the end of the answer; what was written is then a beginning.
    """

    def __init__(self, tape: Tape, write: Sink, dialect: Dialect = JSON, stops: tuple[str, ...] = ()) -> None:
        self._tape = tape
        self._sink = write
        self._dialect = dialect
        self._stops = stops
        self._open: list[_Open] = []
        self._before = ""  # comma and key, written together with what follows them

    def value(self) -> Steps[None]:
        """Read a value."""
        yield from self._whole(self._value())

    def members(self, close: str, pair: str) -> Steps[None]:
        """Read the members of an object, such as a call's arguments, whose opening bracket was read."""
        self._open.append(_Open(close, "}", pair))
        self._write("{")
        yield from self._whole(None)

    def _whole(self, first: Steps[None] | None) -> Steps[None]:
        try:
            if first is not None:
                yield from first
            while self._open:
                yield from self._element(self._open[-1])
        except Malformed:
            if self._before.endswith(":"):
                self._write("null")
            self._before = ""
            self._sink("".join(bracket.json_close for bracket in reversed(self._open)))
            if not self._stops or not (yield from self._tape.at(*self._stops)):
                raise
        except Truncated:
            self._write("")
            raise

    def _write(self, text: str) -> None:
        if self._before:
            text, self._before = self._before + text, ""
        self._sink(text)

    def _element(self, bracket: _Open) -> Steps[None]:
        """Read the next member or item, or the closing bracket."""
        next_one = yield from self._tape.skip_space()
        if next_one == ",":
            self._tape.take(1)
            next_one = yield from self._tape.skip_space()
        if not next_one:
            raise Truncated
        if next_one == bracket.close:
            self._tape.take(1)
            self._open.pop()
            self._write(bracket.json_close)
            return
        self._before = "" if bracket.is_empty else ","
        if bracket.pair:
            self._before += (yield from self.key(bracket.pair)) + ":"
            yield from self._tape.skip_space()
            yield from self._tape.expect(bracket.pair)
        yield from self._value()

    def key(self, pair: str) -> Steps[str]:
        """Read a key, up to what stands between it and its value; return it as a JSON string."""
        next_one = yield from self._tape.peek()
        pieces: list[str] = []
        if next_one in ('"', "'"):
            self._tape.take(1)
            yield from self._string(next_one, pair, pieces.append)
            return "".join(pieces)
        if self._dialect.raw_quote and (yield from self._tape.accept(self._dialect.raw_quote)):
            yield from self._raw_string(pieces.append)
            return "".join(pieces)
        word = (yield from self._tape.word(self._dialect.word)).strip()
        if not word:
            raise Malformed
        return json.dumps(word, ensure_ascii=False)

    def _value(self) -> Steps[None]:
        next_one = yield from self._tape.skip_space()
        if not next_one:
            raise Truncated
        brackets = self._dialect.brackets
        if next_one in brackets:
            if len(self._open) >= MAX_DEPTH:
                raise Malformed
            self._tape.take(1)
            self._mark_parent()
            self._write("{" if next_one == "{" else "[")
            is_object = next_one == "{"
            self._open.append(_Open(brackets[next_one], "}" if is_object else "]", ":" if is_object else ""))
        elif next_one in "\"'":
            self._tape.take(1)
            self._mark_parent()
            if self._dialect.python and (yield from self._tape.accept(next_one * 2)):
                yield from self._long_string(next_one)
            else:
                yield from self._string(next_one, ",}])" if self._open else "", self._write)
        elif self._dialect.raw_quote and (yield from self._tape.accept(self._dialect.raw_quote)):
            self._mark_parent()
            yield from self._raw_string(self._write)
        else:
            yield from self._word()

    def _word(self) -> Steps[None]:
        """Read a number, a constant or what else is no string and has no brackets."""
        word = yield from self._tape.word(self._dialect.word)
        if not (yield from self._tape.peek()) and self._open:
            self._write(word.strip())  # a number may have gone on
            raise Truncated
        try:
            value = _as_json(word.strip(), self._dialect)
        except Malformed:
            self._tape.unread(word)
            raise
        self._mark_parent()
        self._write(value)

    def _mark_parent(self) -> None:
        if self._open:
            self._open[-1].is_empty = False

    def _string(self, quote: str, followers: str, write: Sink) -> Steps[None]:
        """Read a string whose opening quotation mark was read."""
        tape = self._tape
        write('"')
        while True:
            if tape.ahead not in ('"', "\\"):
                yield from tape.copy_run(_PLAIN[quote], write)
            next_one = tape.ahead or (yield from tape.peek())
            if not next_one:
                raise Truncated
            if next_one == "\\":
                yield from self._escape(write)
                continue
            tape.take(1)
            if next_one == quote:
                space: list[str] = []
                if tape.ahead in ("", *SPACE):
                    yield from tape.copy_run(SPACES, space.append)
                if (yield from self._closes(quote, followers, has_space=bool(space))):
                    write('"')
                    return
                next_one += "".join(space)
            write(escaped(next_one))

    def _closes(self, quote: str, followers: str, *, has_space: bool) -> Steps[bool]:
        """Whether the quotation mark just read ends its string, judged by what follows; if not, it belongs to it."""
        if not followers:
            return True
        next_one = self._tape.ahead or (yield from self._tape.peek())
        if next_one == "," and self._open and self._open[-1].pair == ":" and not self._dialect.bare_keys:
            return (yield from self._key_follows())
        if not next_one or next_one in followers or (has_space and next_one == quote):
            return True
        if not any(stop.startswith(next_one) for stop in self._stops):
            return False
        return bool((yield from self._tape.at(*self._stops)))

    def _key_follows(self) -> Steps[bool]:
        """Whether after the comma ahead comes a key, or the object's end, as it does if the comma is no text."""
        space = [self._tape.take(1)]
        yield from self._tape.copy_run(SPACES, space.append)
        next_one = yield from self._tape.peek()
        self._tape.unread("".join(space))
        return not next_one or next_one in "\"'}"

    def _long_string(self, quote: str) -> Steps[None]:
        """Read a string in three quotation marks, which were read."""
        self._write('"')
        while not (yield from self._tape.accept(quote * 3)):
            next_one = yield from self._tape.peek()
            if not next_one:
                raise Truncated
            if next_one == "\\":
                yield from self._escape(self._write)
            else:
                self._write(escaped(self._tape.take(1)))
                yield from self._tape.copy_run(_PLAIN[quote], self._write)
        self._write('"')

    def _raw_string(self, write: Sink) -> Steps[None]:
        write('"')
        marker = Markers([self._dialect.raw_quote])
        if not (yield from self._tape.copy_until(marker, lambda text: write(escaped(text)))):
            raise Truncated
        write('"')

    def _escape(self, write: Sink) -> Steps[None]:
        """Read a backslash and what belongs to it."""
        tape, python = self._tape, self._dialect.python
        tape.take(1)
        next_one = tape.ahead or (yield from tape.peek())
        if next_one == "u" or (python and next_one in ("x", "U")):
            tape.take(1)
            digits = yield from self._digits(_ESCAPES[next_one])
            code = int(digits, 16) if len(digits) == _ESCAPES[next_one] else -1
            if next_one == "u" and code in _HIGH_HALVES:
                yield from self._second_half(digits, write)
            elif code in _HALVES:
                write(_NO_CHARACTER)
            elif next_one == "u" and code >= 0:
                write(f"\\u{digits}")
            elif 0 <= code <= 0x10FFFF:
                write(json.dumps(chr(code))[1:-1])
            else:
                write(f"\\\\{next_one}{digits}")
        elif next_one and next_one in '"\\/bfnrt':
            write(f"\\{tape.take(1)}")
        elif next_one == "'":
            write(tape.take(1))
        elif next_one == "\n" and python:
            tape.take(1)
        elif next_one:
            write("\\\\")  # the character itself is read next

    def _second_half(self, first: str, write: Sink) -> Steps[None]:
        """Read what follows the first half of a surrogate pair. A half without the other becomes U+FFFD."""
        begin = yield from self._tape.accept("\\u")
        digits = (yield from self._digits(_ESCAPES["u"])) if begin else ""
        if len(digits) == _ESCAPES["u"] and int(digits, 16) in _LOW_HALVES:
            write(f"\\u{first}\\u{digits}")
        else:
            write(_NO_CHARACTER)
            self._tape.unread(begin + digits)

    def _digits(self, limit: int) -> Steps[str]:
        digits = ""
        while len(digits) < limit and _HEX.match((yield from self._tape.peek())):
            digits += self._tape.take(1)
        return digits


def escaped(text: str) -> str:
    """Return what a text is inside of a JSON string."""
    return '\\"' if text == '"' else json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(word: str, dialect: Dialect) -> str:
    """Return a word's JSON. Raises Malformed if it has none."""
    if _NUMBER.fullmatch(word):
        return word
    if word in WORDS:
        return WORDS[word]
    if _OTHER_INTEGER.fullmatch(word):
        return word[1:]
    if _OTHER_FLOAT.fullmatch(word):
        return json.dumps(float(word)) if "inf" not in repr(float(word)) else "null"
    if dialect.bare_strings and word:
        return json.dumps(word, ensure_ascii=False)
    raise Malformed
