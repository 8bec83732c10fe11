"""What the handlers of one app share. Made by create_app and handed to each handler; nothing is global."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from caudal.errors import InvalidParameter, PromptTooLong
from caudal.server.admission import Admission
from caudal.server.error_bodies import HTTPProblem
from caudal.server.metrics import ServerMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from caudal.engine.engine_client import Engines
    from caudal.server.settings import ServedModel, ServerSettings
    from caudal.server.tokenizer_port import ServedTokenizer

Result = TypeVar("Result")
LONG_TEXT_CHARS = 4096


class ServerContext:
    """One served model.

    Args:
        client: the engine.
        tokenizer: the model's.
        model: how clients name it.
        settings: the HTTP side.
    """

    def __init__(
        self, client: Engines, tokenizer: ServedTokenizer, model: ServedModel, settings: ServerSettings
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.model = model
        self.settings = settings
        self.admission = Admission(settings.max_open_requests)
        self.metrics = ServerMetrics(client, model.name)
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")

    @property
    def max_model_len(self) -> int | None:
        """Longest prompt plus answer; None while no engine is ready."""
        return None if self.client.ready is None else self.client.ready.max_model_len

    def check_model(self, name: str | None) -> None:
        """Raise the 404 that OpenAI's API gives for a model that is not served."""
        if not self.model.answers_to(name):
            message = f"the model {name!r} is not served here; this server has {self.model.name!r} (see /v1/models)"
            raise HTTPProblem(404, message, code="model_not_found", parameter="model")

    async def tokenize(self, work: Callable[[], Result], num_chars: int) -> Result:
        """Run tokenizer work: here if it is short, else on the one thread for it, so that streams do not stall."""
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
            raise PromptTooLong(message, parameter=parameter)
        return limit - num_prompt if asked is None else min(asked, limit - num_prompt)

    def close(self) -> None:
        """Stop the tokenizing thread."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
