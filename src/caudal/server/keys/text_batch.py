"""The texts that one request has read without an answer, as for embeddings: reserved together, settled together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.server.answer_reader import Piece
    from caudal.server.keys.limiter import TokenGrant


@dataclass(slots=True)
class TextMeter:
    """Counts one text (see AnswerWatcher). Only one that was read costs anything.

    Attributes:
        num_prompt: its tokens, as far as they count.
    """

    num_prompt: int
    num_cached: int = 0
    num_generated: int = 0
    finish_reason: str | None = None

    def note(self, piece: Piece) -> None:
        """See the text's only piece."""
        self.num_cached = max(self.num_cached, piece.num_cached_tokens)
        if piece.finish_reason is not None:
            self.end(piece.finish_reason)

    def end(self, reason: str) -> None:
        """End, once."""
        if self.finish_reason is None:
            self.finish_reason = reason
            if reason != "stop":
                self.num_prompt = 0


@dataclass(frozen=True, slots=True)
class TextBatch:
    """The texts of a request.

    Attributes:
        texts: one meter each.
        grant: what was reserved for all of them; None for nobody's.
    """

    texts: list[TextMeter]
    grant: TokenGrant | None

    def close(self) -> None:
        """Settle: the texts that were read count; none does if one has failed, because then the client gets nothing."""
        for text in self.texts:
            text.end("abort")
        if any(text.finish_reason == "error" for text in self.texts):
            for text in self.texts:
                text.num_prompt = 0
        if self.grant is not None:
            self.grant.settle(sum(text.num_prompt for text in self.texts))
