"""What `caudal bench` measures: requests of random tokens, and which of the engine's steps count."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.errors import CaudalError
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

if TYPE_CHECKING:
    from caudal.engine.engine import Engine
    from caudal.messages import EngineReady

BATCH_LEN = 32


@dataclass(frozen=True)
class SpeedTest:
    """Streams that start together.

    Attributes:
        name: ppN, tgN or bN.
        num_seqs: streams.
        prompt_len: tokens in each prompt.
        num_generated: tokens that each stream generates after its first; 0 measures the prompt instead.
    """

    name: str
    num_seqs: int
    prompt_len: int
    num_generated: int

    @property
    def seq_len(self) -> int:
        """Tokens of one stream, from first to last."""
        return self.prompt_len + self.num_generated + 1

    def work_per_token(self, facts: EngineReady) -> tuple[float, float]:
        """Return the bytes of weights read and the products with weights for each token that counts.

        A prompt is one step, of which the last token goes through the head.
        """
        if not self.num_generated:
            macs = facts.macs_per_token + facts.macs_per_logits / self.prompt_len
            return facts.step_weights_bytes / self.prompt_len, macs
        return facts.step_weights_bytes / self.num_seqs, facts.macs_per_token + facts.macs_per_logits

    def tokens_per_s(self, engine: Engine, vocab_size: int, seed: int) -> float:
        """Run once and return prompt tokens, or generated ones, over the time that they took."""
        for request in self._requests(vocab_size, seed):
            engine.add_request(request)
        start = time.perf_counter()
        started: set[str] = set()
        while len(started) < self.num_seqs:
            started |= _step(engine)
        prompts_done = time.perf_counter()
        if not self.num_generated:
            return self.num_seqs * self.prompt_len / (prompts_done - start)
        generated = 0
        while engine.has_work:
            generated += sum(len(update.token_ids) for update in engine.step())
        return generated / (time.perf_counter() - prompts_done)

    def _requests(self, vocab_size: int, seed: int) -> list[AddRequest]:
        source = random.Random(seed)  # noqa: S311 - any tokens will do
        params = SamplingParams(temperature=0, max_tokens=self.num_generated + 1, ignore_eos=True)
        return [
            AddRequest(
                request_id=f"{self.name}-{seed}-{index}",
                prompt_token_ids=[source.randrange(vocab_size) for _ in range(self.prompt_len)],
                params=params,
            )
            for index in range(self.num_seqs)
        ]


def _step(engine: Engine) -> set[str]:
    """Run one step and return the requests that got a token."""
    updates = engine.step()
    failed = next((update.error for update in updates if update.error), None)
    if failed is not None:
        raise CaudalError(failed)
    return {update.request_id for update in updates if update.token_ids}


def prompt_test(num_tokens: int) -> SpeedTest:
    """One prompt, until its first token is chosen."""
    return SpeedTest(f"pp{num_tokens}", 1, num_tokens, 0)


def generation_test(num_tokens: int) -> SpeedTest:
    """One stream from a prompt of one token."""
    return SpeedTest(f"tg{num_tokens}", 1, 1, num_tokens)


def batch_test(num_seqs: int) -> SpeedTest:
    """Many streams with short prompts, as llama-batched-bench runs them."""
    return SpeedTest(f"b{num_seqs}", num_seqs, BATCH_LEN, BATCH_LEN)
