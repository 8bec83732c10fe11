"""The clock of one answer: how long it waited, computed and wrote. Reported to the metrics when it ends, once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.messages import StartTimes
    from caudal.server.answer_reader import Piece
    from caudal.server.metrics import ModelMetrics


class AnswerTimer:
    """Measures one answer.

    Args:
        metrics: of the model that answers.
        num_prompt_tokens: length of the prompt.
        tenant: whose request it is; "" is nobody in particular.

    Attributes:
        num_tokens: generated so far.
        num_cached_tokens: of the prompt, found in the prefix cache.
        first_s: monotonic time of the first token; None before.
        finish_reason: how it ended; None before.
        start_times: what the engine says of the time before the first token.
    """

    def __init__(self, metrics: ModelMetrics, num_prompt_tokens: int, tenant: str = "") -> None:
        self._metrics = metrics
        self._tenant = tenant
        self._begun_s = time.monotonic()
        self._last_s = self._begun_s
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.first_s: float | None = None
        self.finish_reason: str | None = None
        self.start_times: StartTimes | None = None

    def note(self, piece: Piece) -> None:
        """Take a piece of the answer into account."""
        if piece.start_times is not None:
            self.start_times = piece.start_times
        if piece.num_tokens:
            self._note_tokens(piece)
        if piece.finish_reason is not None:
            self.end(piece.finish_reason)

    def end(self, reason: str) -> None:
        """Report the answer, unless that has been done."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        metrics = self._metrics
        metrics.finished(reason, self._tenant)
        if reason not in ("stop", "length"):
            return
        metrics.request_s.observe(time.monotonic() - self._begun_s)
        metrics.request_prompt_tokens.observe(self.num_prompt_tokens)
        metrics.request_generation_tokens.observe(self.num_tokens)
        if self.first_s is None:
            return
        decode_s = self._last_s - self.first_s
        if self.num_tokens > 1:
            metrics.request_token_s.observe(decode_s / (self.num_tokens - 1))
        if self.start_times is not None:
            metrics.queue_s.observe(self.start_times.queue_s)
            metrics.prefill_s.observe(self.start_times.prefill_s)
            metrics.decode_s.observe(decode_s)
            metrics.inference_s.observe(self.start_times.prefill_s + decode_s)

    def _note_tokens(self, piece: Piece) -> None:
        now_s = time.monotonic()
        metrics, num_tokens = self._metrics, piece.num_tokens
        if self.first_s is None:
            self.first_s = now_s
            self.num_cached_tokens = piece.num_cached_tokens
            metrics.read(self.num_prompt_tokens, self.num_cached_tokens, self._tenant)
            metrics.first_token_s.observe(now_s - self._begun_s)
        else:
            for _ in range(num_tokens):
                metrics.token_s.observe((now_s - self._last_s) / num_tokens)
                metrics.output_token_s.observe((now_s - self._last_s) / num_tokens)
        metrics.wrote(num_tokens, self._tenant)
        self.num_tokens += num_tokens
        self._last_s = now_s
