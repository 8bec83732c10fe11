"""How many tokens one answer has read and written, in the terms of every API's `usage`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.tools.parts import ReasoningPart

if TYPE_CHECKING:
    from caudal.server.answer_reader import Piece


class AnswerCount:
    """Counts while pieces come.

    Args:
        num_prompt: tokens of the prompt.

    Attributes:
        num_cached: prompt tokens that came from the prefix cache.
        num_generated: tokens of the answer, reasoning and the token that ended it included.
        num_reasoning: those of them that the reasoning took, its markers included. A piece that holds both the last
            of the reasoning and the first of what follows counts whole.
    """

    def __init__(self, num_prompt: int) -> None:
        self.num_prompt = num_prompt
        self.num_cached = 0
        self.num_generated = 0
        self.num_reasoning = 0
        self._reasons = False

    def add(self, piece: Piece) -> None:
        """Count a piece."""
        self.num_cached = max(self.num_cached, piece.num_cached_tokens)
        self.num_generated += piece.num_tokens
        reasons = self._reasons if not piece.parts else isinstance(piece.parts[-1], ReasoningPart)
        if reasons or any(isinstance(part, ReasoningPart) for part in piece.parts):
            self.num_reasoning += piece.num_tokens
        self._reasons = reasons
