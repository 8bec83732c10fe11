"""A model that is ready to answer: its engine, its tokenizer, and how clients name it."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from caudal.constrain.checker import GrammarChecker
from caudal.errors import EngineUnavailable, InvalidParameter, PromptTooLong
from caudal.messages import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from caudal.engine.engine_client import Engines
    from caudal.server.metrics import ModelMetrics
    from caudal.server.settings import ServedModel
    from caudal.server.tokenizer_port import ServedTokenizer

Result = TypeVar("Result")
LONG_TEXT_CHARS = 4096
MAX_COUNTED_CHARS = 4 * 1024 * 1024
"""Of a text whose tokens are wanted for themselves or their number: a million tokens of ordinary text."""

_SHORT_CHARS = 64 * 1024
"""Never refused unread: some tokenizers drop white space, or read a long word as one token."""


def check_counted(length: int, parameter: str) -> None:
    """Raise InvalidParameter if there is too much to have its tokens counted; length in characters, or token ids."""
    if length > MAX_COUNTED_CHARS:
        message = f"{parameter} is {length} long; this route reads at most {MAX_COUNTED_CHARS}: send it in parts"
        raise InvalidParameter(message, parameter=parameter)


class LoadedModel:
    """What the handlers know of a model.

    Args:
        client: its engine.
        tokenizer: its tokenizer.
        info: how clients name it.
        metrics: where its requests are counted.
        tokenizing: a thread for long texts, so that streams do not stall.
    """

    def __init__(
        self,
        client: Engines,
        tokenizer: ServedTokenizer,
        info: ServedModel,
        *,
        metrics: ModelMetrics,
        tokenizing: Executor,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.info = info
        self.metrics = metrics
        self._tokenizing = tokenizing
        self._grammars: GrammarChecker | None = None
        client.know_vocabulary(lambda: vocabulary_of(tokenizer))

    @property
    def grammars(self) -> GrammarChecker:
        """Who tries grammars before the engine gets them; begun when first asked for."""
        if self._grammars is None:
            self._grammars = GrammarChecker(self.tokenizer.vocab_size, self.tokenizer.control_tokens)
        return self._grammars

    @property
    def name(self) -> str:
        """Its id in /v1/models."""
        return self.info.name

    @property
    def max_model_len(self) -> int | None:
        """Longest prompt plus answer; None while no engine is ready."""
        return None if self.client.ready is None else self.client.ready.max_model_len

    @property
    def task(self) -> str:
        """What the model does with a request: "generate", "embed" or "score"."""
        return "generate" if self.client.ready is None else self.client.ready.task

    def require(self, task: str) -> None:
        """Raise InvalidParameter if the model does something else with a request.

        Raises:
            EngineUnavailable: that is not known now: its engine is starting again.
        """
        if self.client.ready is None:
            message = "the engine is starting; try again in a moment"
            raise EngineUnavailable(message, retry_after_s=2.0)
        if self.task == task:
            return
        able = {"generate": "writes text", "embed": "makes embeddings", "score": "scores pairs of texts"}
        message = f"the model {self.name!r} {able[self.task]}; this route needs one that {able[task]}"
        raise InvalidParameter(message, parameter="model")

    def check_reads(self, num_tokens: int, parameter: str) -> None:
        """Raise PromptTooLong if a text has more tokens than the model reads."""
        limit = self.max_model_len
        if limit is not None and num_tokens > limit:
            message = (
                f"This model's maximum context length is {limit} tokens. However, a text has {num_tokens} tokens, "
                "which is too large. Cut it into smaller ones."
            )
            raise PromptTooLong(message, parameter=parameter, num_prompt_tokens=num_tokens, max_model_len=limit)

    def check_text(self, num_chars: int, parameter: str) -> None:
        """Raise PromptTooLong if a text has more characters than the context holds, whatever tokens they make.

        One thread tokenizes for all requests: a text is measured there before it is worked through.
        """
        limit = self.max_model_len
        if limit is None or num_chars <= max(_SHORT_CHARS, limit * self._longest_token):
            return
        num_tokens = -(-num_chars // self._longest_token)
        message = (
            f"This model's maximum context length is {limit} tokens. However, a text has {num_chars} characters, which "
            f"are at least {num_tokens} tokens. Shorten it, or start the server with a larger --max-model-len."
        )
        raise PromptTooLong(message, parameter=parameter, num_prompt_tokens=num_tokens, max_model_len=limit)

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token, which is no shorter in characters than any token."""
        control = max((len(text.encode()) for text in self.tokenizer.control_tokens), default=1)
        longest = max(len(self.tokenizer.token_bytes(token_id)) for token_id in range(self.tokenizer.vocab_size))
        return max(control, longest, 1)

    async def tokenize(self, work: Callable[[], Result], num_chars: int) -> Result:
        """Run tokenizer work: here if it is short, else on the thread for it."""
        if num_chars < LONG_TEXT_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    def room_for_answer(self, prompt_token_ids: list[int], asked: int | None, parameter: str) -> int | None:
        """Return max_tokens for the engine: what was asked for, or less if the context ends before.

        Raises:
            InvalidParameter: the prompt has no tokens.
            PromptTooLong: the prompt leaves no room for a single token.
        """
        num_prompt = len(prompt_token_ids)
        if num_prompt == 0:
            message = "the prompt has no tokens; expected at least one"
            raise InvalidParameter(message, parameter=parameter)
        limit = self.max_model_len
        if limit is None:
            return asked  # generate() will say that there is no engine
        if num_prompt >= limit:
            message = (
                f"This model's maximum context length is {limit} tokens. However, you requested {num_prompt + 1} "
                f"tokens ({num_prompt} in the prompt and at least 1 for the answer). Shorten the prompt, or start the "
                "server with a larger --max-model-len."
            )
            raise PromptTooLong(message, parameter=parameter, num_prompt_tokens=num_prompt, max_model_len=limit)
        return limit - num_prompt if asked is None else min(asked, limit - num_prompt)


def vocabulary_of(tokenizer: ServedTokenizer) -> Vocabulary:
    """Return what every token stands for."""
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
        special_ids=sorted(tokenizer.control_tokens.values()),
        eos_token_ids=list(tokenizer.eos_token_ids),
    )
