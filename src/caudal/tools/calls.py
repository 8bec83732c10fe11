"""What a syntax of calls is to the parser and to the grammar, and where it puts the calls that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from caudal.tools.tape import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.tools.grammar_text import Shape, Writer
    from caudal.tools.parts_writer import PartsWriter
    from caudal.tools.tape import Steps, Tape

    Schemas = Mapping[str, Mapping[str, Any]]


class Calls:
    """The calls of one answer.

    Args:
        tape: remembers what was read of a call that has not begun, in case it is none.
        parts: gets the calls.
        schemas: the tools' names and the JSON schemas of their parameters.
    """

    def __init__(self, tape: Tape, parts: PartsWriter, schemas: Schemas) -> None:
        self.schemas = schemas
        self._tape = tape
        self._parts = parts

    def begin(self, name: str) -> None:
        """Begin a call; it will not become text any more. Raises Malformed if it has no name."""
        if not name:
            raise Malformed
        self._tape.forget()
        self._parts.begin(name)

    def arguments(self, text: str) -> None:
        """Add to the call's arguments."""
        self._parts.arguments(text)

    def end(self) -> None:
        """Say that the call is complete; what is read from here on may still be none."""
        if self._parts.lacks_arguments:
            self._parts.arguments("{}")
        self._tape.keep()


class CallSyntax(Protocol):
    """How a model writes calls."""

    @property
    def name(self) -> str:
        """The syntax's."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Texts that begin a call wherever they stand."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""

    def read(self, tape: Tape, calls: Calls, opener: str) -> Steps[None]:
        """Read a call, or several, after an opener.

        Raises:
            Malformed: the text is no call, or no longer one; it is read on as text.
            Truncated: the answer ended.
        """

    def read_bare(self, tape: Tape, calls: Calls) -> Steps[None]:
        """Read calls that have no opener, at the answer's beginning, or nothing.

        Raises what `read` raises.
        """

    def shape(self) -> Shape:
        """Return what a grammar puts around calls. Raises InvalidParameter if the syntax has no grammar."""

    def call_rule(self, writer: Writer, name: str, schema: Mapping[str, Any], before: str = "") -> str:
        """Return the grammar's text for a call of one tool, with `before` in front of it.

        What `shape` puts around calls is not in it.
        """
