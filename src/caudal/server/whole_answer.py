"""Answers of one piece each, written as one body; there is no stream of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.answer_writer import EVENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caudal.server.answer_reader import Piece
    from caudal.server.problems import Problem


class WholeAnswerWriter:
    """An AnswerWriter for a body only.

    Args:
        write: the last pieces, in the order of the answers, to the body. What it raises is told to the client.
    """

    stream_type = EVENT_STREAM

    def __init__(self, write: Callable[[Sequence[Piece]], bytes]) -> None:
        self._write = write

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the body."""
        return self._write([piece for _, piece in sorted(pieces, key=lambda numbered: numbered[0])])

    def begin(self) -> bytes:
        """Return nothing: such an answer is not streamed."""
        return b""

    def events(self, index: int, piece: Piece) -> bytes:  # noqa: ARG002 - the protocol's arguments
        """Return nothing."""
        return b""

    def end(self) -> bytes:
        """Return nothing."""
        return b""

    def failure(self, problem: Problem) -> bytes:  # noqa: ARG002 - the same
        """Return nothing."""
        return b""

    def ping(self) -> bytes:
        """Return nothing."""
        return b""
