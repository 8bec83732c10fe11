"""How long an answer took, and of how many tokens it consists: for APIs that report it with the answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.server.answer_reader import Piece


class AnswerClock:
    """Counts one answer's pieces; begins when it is made.

    Attributes:
        num_tokens: generated so far.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        prompt_s: until the first token; waiting for the engine is part of it.
        generation_s: from the first token to the latest.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.prompt_s = 0.0
        self.generation_s = 0.0
        self._begun_s = time.monotonic()
        self._first_s: float | None = None

    def note(self, piece: Piece) -> None:
        """Take a piece into account."""
        self.num_cached_tokens = max(self.num_cached_tokens, piece.num_cached_tokens)
        if not piece.num_tokens:
            return
        self.num_tokens += piece.num_tokens
        if self._first_s is None:
            self._first_s = piece.time_s
            self.prompt_s = max(0.0, piece.time_s - self._begun_s)
        self.generation_s = max(0.0, piece.time_s - self._first_s)
