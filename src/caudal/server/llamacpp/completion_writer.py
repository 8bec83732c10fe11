"""The pieces of native completions: events with what is new, and results with timings and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.server.answer_clock import AnswerClock
from caudal.server.answer_writer import EVENT_STREAM, PING, by_answer, sse
from caudal.server.llamacpp.error_shape import llamacpp_shape
from caudal.server.openai.token_labels import finite

if TYPE_CHECKING:
    from caudal.messages import TokenLogprobs
    from caudal.server.answer_reader import Piece
    from caudal.server.llamacpp.prompts import Prompt
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.problems import Problem

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request wants to be told.

    Attributes:
        settings: the generation_settings.
        num_probs: likeliest tokens of each place; None for none.
        nothing: the prompts are read, and nothing is generated that anybody sees.
        tokens, progress: return_tokens, and return_progress.
        timings: timings_per_token.
        fields: response_fields; none for all.
    """

    settings: dict[str, Any]
    num_probs: int | None = None
    nothing: bool = False
    tokens: bool = False
    progress: bool = False
    timings: bool = False
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class _Answer:
    """One answer so far."""

    prompt: Prompt
    clock: AnswerClock = field(default_factory=AnswerClock)
    has_new_line: bool = False


class CompletionWriter:
    """Pieces in the shapes of /completion. Answer i belongs to prompt i // n."""

    stream_type = EVENT_STREAM

    def __init__(self, model: LoadedModel, prompts: list[Prompt], wanted: Wanted, *, n: int) -> None:
        self._model_name = model.name
        self._tokenizer = model.tokenizer
        self._wanted = wanted
        self._answers = [_Answer(prompt) for prompt in prompts for _ in range(n)]

    def begin(self) -> bytes:
        """Return nothing."""
        return b""

    def events(self, index: int, piece: Piece) -> bytes:
        """Return what a piece adds, and the result without its content after the last piece."""
        answer = self._answers[index]
        is_first = answer.clock.num_tokens == 0 and piece.num_tokens > 0
        self._note(index, piece)
        events = b""
        if not self._wanted.nothing and (piece.text or (piece.num_tokens and piece.finish_reason is None)):
            events = self._event(self._partial(index, piece, is_first=is_first))
        if piece.finish_reason is not None:
            events += self._event(self._selected(self._result(index, [], piece)))
        return events

    def end(self) -> bytes:
        """Return nothing: the last event says that it is the last."""
        return b""

    def failure(self, problem: Problem) -> bytes:
        """Return an error event."""
        return sse(llamacpp_shape(problem), "error")

    def ping(self) -> bytes:
        """Return a comment."""
        return PING

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the result, or the list of them if there are several."""
        for index, piece in pieces:
            self._note(index, piece)
        results = [
            self._selected(self._result(index, own, own[-1]))
            for index, own in enumerate(by_answer(pieces, len(self._answers)))
        ]
        return _encode(results[0] if len(results) == 1 else results)

    def _note(self, index: int, piece: Piece) -> None:
        answer = self._answers[index]
        answer.clock.note(piece)
        answer.has_new_line |= "\n" in piece.text

    def _partial(self, index: int, piece: Piece, *, is_first: bool) -> dict[str, Any]:
        answer = self._answers[index]
        partial: dict[str, Any] = {
            "index": index,
            "content": piece.text,
            "tokens": piece.token_ids,
            "stop": False,
            "id_slot": index,
            "tokens_predicted": answer.clock.num_tokens,
            "tokens_evaluated": len(answer.prompt.token_ids),
        }
        if self._wanted.num_probs is not None:
            partial["completion_probabilities"] = self._probabilities([piece])
        if self._wanted.timings:
            partial["timings"] = self._timings(answer)
        if self._wanted.progress and is_first:
            total = len(answer.prompt.token_ids)
            partial["prompt_progress"] = {
                "total": total,
                "cache": answer.clock.num_cached_tokens,
                "processed": total,
                "time_ms": round(answer.clock.prompt_s * 1e3),
            }
        return partial

    def _result(self, index: int, pieces: list[Piece], last: Piece) -> dict[str, Any]:
        """Return a result.

        Args:
            index: of the answer.
            pieces: those whose content is part of it; none in a stream, which has told it.
            last: the piece that ended the answer.
        """
        answer, wanted = self._answers[index], self._wanted
        shown = [] if wanted.nothing else pieces
        num_predicted = 0 if wanted.nothing else answer.clock.num_tokens
        num_prompt = len(answer.prompt.token_ids)
        result: dict[str, Any] = {
            "index": index,
            "content": "".join(piece.text for piece in shown),
            "tokens": [token_id for piece in shown for token_id in piece.token_ids] if wanted.tokens else [],
            "id_slot": index,
            "stop": True,
            "model": self._model_name,
            "tokens_predicted": num_predicted,
            "tokens_evaluated": num_prompt,
            "generation_settings": wanted.settings,
            "prompt": answer.prompt.text,
            "has_new_line": answer.has_new_line,
            "truncated": False,
            **_stop_of(last, nothing=wanted.nothing),
            "tokens_cached": num_prompt + num_predicted,
            "timings": self._timings(answer),
        }
        if wanted.num_probs is not None and shown:
            result["completion_probabilities"] = self._probabilities(shown)
        return result

    def _selected(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that were asked for; "a/b" is the field b inside a."""
        if not self._wanted.fields:
            return result
        selected: dict[str, Any] = {}
        for path in self._wanted.fields:
            value: Any = result
            for name in path.split("/"):
                value = value.get(name, ...) if isinstance(value, dict) else ...
            if value is not ...:
                selected[path] = value
        return selected

    def _timings(self, answer: _Answer) -> dict[str, Any]:
        clock = answer.clock
        num_read = max(0, len(answer.prompt.token_ids) - clock.num_cached_tokens)
        num_predicted = 0 if self._wanted.nothing else clock.num_tokens
        return {
            "cache_n": clock.num_cached_tokens,
            **_pace("prompt", num_read, num_read, clock.prompt_s),
            **_pace("predicted", num_predicted, num_predicted - 1, clock.generation_s),
        }

    def _probabilities(self, pieces: list[Piece]) -> list[dict[str, Any]]:
        return [self._probability(entry) for piece in pieces for entry in piece.logprobs]

    def _probability(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = zip(entry.top_ids, entry.top_logprobs, strict=True)
        likeliest = [self._token(*each) for each in list(top)[: self._wanted.num_probs]]
        return {**self._token(entry.token_id, entry.logprob), "top_logprobs": likeliest}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        text = data.decode(errors="replace")
        return {"id": token_id, "token": text, "bytes": list(data), "logprob": finite(logprob)}

    def _event(self, data: dict[str, Any]) -> bytes:
        return sse(_encode(data))


def _stop_of(last: Piece, *, nothing: bool) -> dict[str, str]:
    """Return why an answer ended."""
    if nothing or last.finish_reason == "length":
        return {"stop_type": "limit", "stopping_word": ""}
    if isinstance(last.stop_reason, str):
        return {"stop_type": "word", "stopping_word": last.stop_reason}
    return {"stop_type": "eos", "stopping_word": ""}


def _pace(name: str, count: int, timed: int, seconds: float) -> dict[str, Any]:
    """Return a number of tokens and how fast they came; every number is finite.

    Args:
        name: what begins the fields' names.
        count: of all tokens.
        timed: how many of them came within the time. The first of an answer comes with the end of its prompt.
        seconds: the time.
    """
    timed = max(0, timed)
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / timed if timed else 0.0,
        f"{name}_per_second": timed / seconds if seconds else 0.0,
    }
