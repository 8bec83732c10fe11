"""How many answers may be open at a time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter, Overloaded

if TYPE_CHECKING:
    from collections.abc import Iterator


class Admission:
    """Counts open answers and refuses what would exceed the limit.

    Args:
        max_open: answers being made or waiting at a time.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self.num_open = 0

    @contextmanager
    def admit(self, num_answers: int) -> Iterator[None]:
        """Hold room for this many answers while the block runs.

        Raises:
            InvalidParameter: more answers than the server ever takes.
            Overloaded: not enough room now.
        """
        if num_answers > self._max_open:
            message = f"the request asks for {num_answers} answers; expected at most {self._max_open} (prompts times n)"
            raise InvalidParameter(message, parameter="n")
        if self.num_open + num_answers > self._max_open:
            message = f"{self.num_open} answers are open and the limit is {self._max_open}; try again in a moment"
            raise Overloaded(message)
        self.num_open += num_answers
        try:
            yield
        finally:
            self.num_open -= num_answers
