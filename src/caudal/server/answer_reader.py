"""From an engine's updates to pieces of text: detokenisation, stop strings, calls of tools, and counting. No I/O.

Streamed and whole answers are made of the same pieces, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from caudal.errors import CaudalError, EngineUnavailable
from caudal.tokenizer.stop_strings import StopMatcher

if TYPE_CHECKING:
    from caudal.messages import StartTimes, TokenLogprobs, Update
    from caudal.sampling_params import SamplingParams
    from caudal.server.tokenizer_port import StreamDetokenizer
    from caudal.tools.parts import AnswerParser, Part


@dataclass(slots=True)
class Piece:
    """A part of one answer.

    Attributes:
        text: new text; may be empty.
        parts: the same, told apart into text, reasoning and calls of tools, if the answer is read so. What may still
            become a marker comes with a later piece.
        num_tokens: new tokens, the one that ended the answer included.
        token_ids: these tokens.
        logprobs: one entry per new token, if asked for.
        offsets: for each entry of logprobs, where in the answer's text the token begins (characters).
        prompt_logprobs: once, if asked for.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        start_times: of the request, once, with its first token.
        finish_reason: "stop" or "length" in the last piece.
        stop_reason: the stop string or the stop token id that ended the answer; None for the model's own end.
        embedding: of a text that an embedding model has read, or its scores.
        time_s: when it was read, of time.monotonic; set by whoever reads.
    """

    text: str = ""
    parts: list[Part] = field(default_factory=list)
    num_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    start_times: StartTimes | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    embedding: list[float] | None = None
    time_s: float = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the answer ends where the model did not choose to end it: at its length, or at a stop string."""
        return self.finish_reason == "length" or isinstance(self.stop_reason, str)


def raise_failure(update: Update) -> None:
    """Raise what an update says went wrong: EngineUnavailable if somebody else ended the request, or CaudalError."""
    if update.finish_reason == "error":
        raise CaudalError(update.error or "the engine failed this request; see its log")
    if update.finish_reason == "abort":
        message = "the request was ended from the server's side; try again"
        raise EngineUnavailable(message)


class AnswerReader:
    """Reads the updates of one request.

    Args:
        detokenizer: begins where the prompt ends.
        params: the request's; `stop`, `stop_token_ids` and `min_tokens` matter here.
        include_stop: leave a stop string that ended the answer in its text.
        parser: fills the pieces' parts.
    """

    def __init__(
        self,
        detokenizer: StreamDetokenizer,
        params: SamplingParams,
        *,
        include_stop: bool = False,
        parser: AnswerParser | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._matcher = StopMatcher(params.stop) if params.stop else None
        self._stop_token_ids = params.stop_token_ids
        self._min_tokens = params.min_tokens
        self._include_stop = include_stop
        self._num_tokens = 0
        self._num_chars = 0

    def push(self, update: Update) -> Piece:
        """Return what an update adds. After a piece with a finish_reason the request is over for the client.

        Raises:
            EngineUnavailable: somebody else aborted the request.
            CaudalError: the engine failed it.
        """
        piece = self._read(update)
        if self._parser is not None:
            piece.parts = self._parser.push(piece.text)
            if piece.finish_reason is not None:
                piece.parts += self._parser.finish()
        return piece

    def _read(self, update: Update) -> Piece:
        raise_failure(update)
        piece = Piece(
            prompt_logprobs=update.prompt_logprobs,
            num_cached_tokens=update.num_cached_tokens,
            start_times=update.start_times,
        )
        token_ids = update.token_ids
        ends_text = update.stop_token_id is not None and token_ids[-1:] == [update.stop_token_id]
        for i, token_id in enumerate(token_ids):
            if update.logprobs is not None:
                piece.logprobs.append(update.logprobs[i])
                piece.offsets.append(self._num_chars)
            self._num_tokens += 1
            piece.num_tokens += 1
            piece.token_ids.append(token_id)
            if ends_text and i == len(token_ids) - 1:
                break
            if self._add_text(piece, self._detokenizer.push([token_id])):
                return piece
        if update.finish_reason is not None:
            self._end(piece, update)
        return piece

    def _add_text(self, piece: Piece, text: str) -> bool:
        """Add text to the piece, up to a stop string; return whether there was one."""
        self._num_chars += len(text)
        if self._matcher is None or self._num_tokens <= self._min_tokens:
            piece.text += text
            return False
        shown, matched = self._matcher.push(text)
        piece.text += shown
        if matched is None:
            return False
        piece.text += matched if self._include_stop else ""
        piece.finish_reason = "stop"
        piece.stop_reason = matched
        return True

    def _end(self, piece: Piece, update: Update) -> None:
        if self._add_text(piece, self._detokenizer.flush()):
            return
        if self._matcher is not None:
            piece.text += self._matcher.flush()
        piece.finish_reason = update.finish_reason
        if update.stop_token_id in self._stop_token_ids:
            piece.stop_reason = update.stop_token_id
