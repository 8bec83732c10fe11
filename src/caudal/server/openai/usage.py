"""Token counts of a request, as OpenAI reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from caudal.server.answer_reader import Piece
    from caudal.server.openai.sampling_fields import StreamOptions


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How much of the prompt came from the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The `usage` object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class UsageCount:
    """Counts while pieces come.

    Args:
        prompt_lens: tokens of each prompt.
        n: answers to each prompt; answer i belongs to prompt i // n.
    """

    def __init__(self, prompt_lens: list[int], n: int) -> None:
        self._num_prompt = sum(prompt_lens)
        self._n = n
        self._num_generated = 0
        self._cached = [0] * len(prompt_lens)

    def add(self, index: int, piece: Piece) -> None:
        """Count a piece of an answer. A prompt's cached tokens are those that its first answer found."""
        self._num_generated += piece.num_tokens
        prompt, choice = divmod(index, self._n)
        if choice == 0:
            self._cached[prompt] = max(self._cached[prompt], piece.num_cached_tokens)

    def usage(self) -> Usage:
        """Return the counts so far."""
        return Usage(
            prompt_tokens=self._num_prompt,
            completion_tokens=self._num_generated,
            total_tokens=self._num_prompt + self._num_generated,
            prompt_tokens_details=PromptTokensDetails(sum(self._cached)),
        )


def wants_usage(options: StreamOptions | None) -> tuple[bool, bool]:
    """Return whether a stream ends with a usage chunk, and whether every chunk carries usage."""
    if options is None:
        return False, False
    continuous = bool(options.continuous_usage_stats) and bool(options.include_usage)
    return bool(options.include_usage), continuous
