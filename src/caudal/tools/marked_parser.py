"""Reads answers whose calls and reasoning stand between markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.tools.calls import Calls
from caudal.tools.parts_writer import PartsWriter
from caudal.tools.tape import SPACES, Malformed, Markers, Tape, Truncated

if TYPE_CHECKING:
    from collections.abc import Generator

    from caudal.tools.calls import CallSyntax, Schemas
    from caudal.tools.parts import Part
    from caudal.tools.reasoning import Reasoning
    from caudal.tools.tape import Steps

# Openers that begin so are control tokens, which no model writes while it thinks about something else.
_CONTROL = ("<|", "<\uff5c", "[")


class TapeParser:
    """An AnswerParser that runs a generator over a tape. Whoever derives from it gives the generator."""

    def __init__(self) -> None:
        self._tape = Tape()
        self._parts = PartsWriter()
        self._steps: Generator[None, None, None] | None = None

    def _read(self) -> Steps[None]:
        """Read the whole answer."""
        raise NotImplementedError

    def push(self, text: str) -> list[Part]:
        """Return what more text makes certain."""
        self._tape.feed(text)
        self._run()
        return self._parts.take()

    def finish(self) -> list[Part]:
        """Return the rest."""
        self._tape.end()
        self._run()
        self._parts.finish()
        return self._parts.take()

    def _run(self) -> None:
        if self._steps is None:
            self._steps = self._read()
        next(self._steps, None)

    def _call(self, reading: Steps[object], calls: Calls, opener: str = "") -> Steps[None]:
        """Read a call or several.

        What is none becomes text. So does the rest of a call that stops being one after it was begun; its arguments
        have been made whole then. A call at which the answer ends keeps the beginning of its arguments.
        """
        self._tape.keep(opener)
        num_calls = self._parts.num_calls
        try:
            yield from reading
        except Malformed:
            if self._parts.num_calls > num_calls and self._parts.lacks_arguments:
                calls.arguments("{}")
        except Truncated:
            pass
        else:
            self._tape.forget()
            return
        self._parts.text(self._tape.forget())


class MarkedParser(TapeParser):
    """Finds calls and reasoning by their markers.

    Args:
        calls: how calls are written; None if there are no tools.
        schemas: the tools.
        reasoning: how reasoning is marked; None if it is not.
        separates_reasoning: tell it from text; otherwise it is text with its markers, but calls in it are none.
        dropped: markers that mean nothing to the reader.
        opens_reasoning: the answer begins inside of reasoning.
    """

    def __init__(
        self,
        calls: CallSyntax | None,
        schemas: Schemas,
        reasoning: Reasoning | None,
        *,
        separates_reasoning: bool,
        dropped: tuple[str, ...] = (),
        opens_reasoning: bool = False,
    ) -> None:
        super().__init__()
        self._syntax = calls
        self._calls = Calls(self._tape, self._parts, schemas)
        self._reasoning = reasoning
        self._separates_reasoning = separates_reasoning
        self._dropped = dropped
        self._opens_reasoning = opens_reasoning
        self._openers = calls.openers if calls is not None else ()

    def _read(self) -> Steps[None]:
        opener = ""
        if self._opens_reasoning and self._reasoning is not None:
            opener = yield from self._thoughts(self._reasoning, "")
        reasoning = self._reasoning.begin if self._reasoning is not None else ""
        markers = Markers(text for text in (*self._openers, *self._dropped, reasoning) if text)
        at_start = True
        while True:
            if not opener and at_start and self._syntax is not None:
                yield from self._bare(self._syntax)
            opener = opener or (yield from self._tape.copy_until(markers, self._parts.text))
            if not opener:
                return
            marker, opener = opener, ""
            if marker in self._openers and self._syntax is not None:
                yield from self._call(self._syntax.read(self._tape, self._calls, marker), self._calls, marker)
                at_start = False
            elif self._reasoning is not None and marker == reasoning:
                if self._reasoning.anywhere or not (self._parts.has_text or self._parts.num_calls):
                    opener = yield from self._thoughts(self._reasoning, marker)
                else:
                    self._parts.text(marker)
                at_start = at_start and not self._parts.has_text
            # else a marker that is dropped

    def _bare(self, syntax: CallSyntax) -> Steps[None]:
        """Read calls without an opener, if the answer begins with some."""
        yield from self._tape.copy_run(SPACES, self._parts.text)
        yield from self._call(syntax.read_bare(self._tape, self._calls), self._calls)

    def _thoughts(self, reasoning: Reasoning, begin: str) -> Steps[str]:
        """Read reasoning up to its end; return the opener of a call that ended it instead, "" if none did."""
        separates = self._separates_reasoning
        sink = self._parts.reasoning if separates else self._parts.text
        if separates:
            self._parts.end_text()
        elif begin:
            self._parts.text(begin)
        breakers = tuple(text for text in self._openers if text.startswith(_CONTROL))
        end = yield from self._tape.copy_until(Markers([reasoning.end, *breakers]), sink)
        self._parts.end_reasoning()
        if end == reasoning.end and not separates:
            self._parts.text(end)
        return "" if end == reasoning.end else end
