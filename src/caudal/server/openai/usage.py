"""Token counts of a request, as OpenAI reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caudal.server.answer_count import AnswerCount

if TYPE_CHECKING:
    from caudal.server.answer_reader import Piece
    from caudal.server.openai.sampling_fields import StreamOptions


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How much of the prompt came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens of the answers the reasoning took."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The `usage` object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class UsageCount:
    """Counts while pieces come.

    Args:
        prompt_lens: tokens of each prompt.
        n: answers to each prompt; answer i belongs to prompt i // n.
    """

    def __init__(self, prompt_lens: list[int], n: int) -> None:
        self._n = n
        self._answers = [AnswerCount(length) for length in prompt_lens for _ in range(n)]

    def add(self, index: int, piece: Piece) -> None:
        """Count a piece of an answer."""
        self._answers[index].add(piece)

    def usage(self) -> Usage:
        """Return the counts so far. A prompt counts once; its cached tokens are those that its first answer found."""
        firsts = self._answers[:: self._n]
        num_prompt = sum(answer.num_prompt for answer in firsts)
        num_generated = sum(answer.num_generated for answer in self._answers)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_generated,
            total_tokens=num_prompt + num_generated,
            prompt_tokens_details=PromptTokensDetails(sum(answer.num_cached for answer in firsts)),
            completion_tokens_details=CompletionTokensDetails(sum(answer.num_reasoning for answer in self._answers)),
        )


def wants_usage(options: StreamOptions | None) -> tuple[bool, bool]:
    """Return whether a stream ends with a usage chunk, and whether every chunk carries usage."""
    if options is None:
        return False, False
    continuous = bool(options.continuous_usage_stats) and bool(options.include_usage)
    return bool(options.include_usage), continuous
