"""Streaming one answer to a terminal or a pipe, and measuring it."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from caudal.llm import Chunk


@dataclass
class AnswerStats:
    """Counts and times of one answer; the clock starts when this is made."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    started_s: float = field(default_factory=time.perf_counter)
    first_s: float = 0.0
    last_s: float = 0.0
    first_tokens: int = 0
    finish_reason: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Count one chunk."""
        if not chunk.token_ids and chunk.finish_reason is None:
            return
        self.last_s = time.perf_counter()
        if not self.num_tokens:
            self.first_s, self.first_tokens = self.last_s, len(chunk.token_ids)
        self.num_tokens += len(chunk.token_ids)
        self.num_prompt_tokens = chunk.num_prompt_tokens
        self.num_cached_tokens = chunk.num_cached_tokens
        self.finish_reason = chunk.finish_reason or self.finish_reason

    def summary(self) -> str:
        """One line. The first token belongs to the prompt's time, as it comes out of the prompt's step."""
        computed = self.num_prompt_tokens - self.num_cached_tokens
        cached = f" ({self.num_cached_tokens} cached)" if self.num_cached_tokens else ""
        prompt_rate = _rate(computed, self.first_s - self.started_s)
        rate = _rate(self.num_tokens - self.first_tokens, self.last_s - self.first_s)
        return (
            f"prompt: {self.num_prompt_tokens} tokens{cached}, {prompt_rate} tokens/s; "
            f"generation: {self.num_tokens} tokens, {rate} tokens/s"
        )


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f}" if count > 0 and seconds > 0 else "-"


def stream_answer(
    stream: Iterator[Chunk], stats: AnswerStats, write: Callable[[str], None], stopped: Callable[[], bool] | None = None
) -> str:
    """Write an answer as it comes and return its text. `stopped` is asked after each chunk; true ends the answer."""
    parts: list[str] = []
    try:
        for chunk in stream:
            stats.add(chunk)
            if chunk.text:
                parts.append(chunk.text)
                write(chunk.text)
            if stopped is not None and stopped():
                break
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()  # lets the engine forget the request at once
    return "".join(parts)


@contextmanager
def interrupt_flag() -> Iterator[threading.Event]:
    """Within this block the first Ctrl-C sets the event, between two steps of the engine; the second one raises."""
    event = threading.Event()

    def on_interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
