"""The pieces of an answer as Ollama's lines: text, thinking and whole calls, and a last line with the counts."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from caudal.server.answer_clock import AnswerClock
from caudal.server.answer_writer import NDJSON
from caudal.server.call_arguments import arguments_of
from caudal.server.ollama.error_shape import ollama_shape
from caudal.server.ollama.protocol import TokenLogprob
from caudal.server.ollama.time_format import nanoseconds, now
from caudal.server.openai.chat_parts import new_call_id
from caudal.server.openai.token_labels import finite
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.messages import TokenLogprobs
    from caudal.server.answer_reader import Piece
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.problems import Problem
    from caudal.tools.parts import Part

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Content:
    """What a line says."""

    text: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


class ContentShape(Protocol):
    """Puts content under the names of one endpoint."""

    def __call__(self, content: Content) -> dict[str, Any]:
        """Return the fields of a line."""


def chat_fields(content: Content) -> dict[str, Any]:
    """Return the fields of /api/chat."""
    message: dict[str, Any] = {"role": "assistant", "content": content.text}
    if content.thinking:
        message["thinking"] = content.thinking
    if content.calls:
        message["tool_calls"] = content.calls
    return {"message": message}


def generate_fields(content: Content) -> dict[str, Any]:
    """Return the fields of /api/generate, which knows no tools."""
    fields: dict[str, Any] = {"response": content.text}
    if content.thinking:
        fields["thinking"] = content.thinking
    return fields


class ContentReader:
    """Makes content of parts. A call is told when it is complete, since its arguments are one object."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._arguments = ""
        self._num_calls = 0

    def read(self, parts: Sequence[Part]) -> list[Content]:
        """Return what parts add."""
        contents: list[Content] = []
        for part in parts:
            if isinstance(part, CallArguments):
                self._arguments += part.text
                continue
            contents += self.finish()
            if isinstance(part, TextPart):
                contents.append(Content(text=part.text))
            elif isinstance(part, ReasoningPart):
                contents.append(Content(thinking=part.text))
            elif isinstance(part, CallBegin):
                self._name = part.name
        return contents

    def finish(self, *, is_cut: bool = False) -> list[Content]:
        """Return a call that is complete now. One that the answer was cut off in is dropped: it must not be run."""
        if self._name is None or (is_cut and not _is_whole(self._arguments)):
            return []
        function = {"index": self._num_calls, "name": self._name, "arguments": arguments_of(self._arguments)}
        self._name, self._arguments = None, ""
        self._num_calls += 1
        return [Content(calls=[{"id": new_call_id(), "function": function}])]


def _is_whole(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the last line of an answer says, apart from what the pieces say.

    Attributes:
        model: as the client named it.
        num_prompt_tokens: of the prompt.
        begun_s: when the request came, of time.monotonic.
        load_s: how long the model took to be ready.
        context: the prompt's token ids, if the answer is to end with a context to go on from.
    """

    model: str
    num_prompt_tokens: int
    begun_s: float
    load_s: float
    context: list[int] | None = None


class LineWriter:
    """Pieces of one answer in Ollama's shapes.

    Args:
        told: for the last line.
        shape: the endpoint's.
        model: who answers.
        num_top: log-probabilities of each token; None for none.
        parsed: whether the pieces have parts; otherwise they are text.
    """

    stream_type = NDJSON

    def __init__(
        self, told: Told, shape: ContentShape, model: LoadedModel, *, num_top: int | None, parsed: bool
    ) -> None:
        self._told = told
        self._shape = shape
        self._tokenizer = model.tokenizer
        self._num_top = num_top
        self._parsed = parsed
        self._clock = AnswerClock()
        self._contents = ContentReader()
        self._logprobs: list[TokenLogprob] = []  # not told yet
        self._context = None if told.context is None else list(told.context)

    def begin(self) -> bytes:
        """Return nothing."""
        return b""

    def events(self, index: int, piece: Piece) -> bytes:  # noqa: ARG002 - there is one answer
        """Return a line for each part of a piece, and the last line after the last piece."""
        lines = [self._line(content) for content in self._read(piece)]
        if piece.finish_reason is not None:
            lines.append(self._last(Content(), piece))
        elif not lines and self._logprobs:
            lines.append(self._line(Content()))
        return b"".join(lines)

    def end(self) -> bytes:
        """Return nothing: the last line has been sent."""
        return b""

    def failure(self, problem: Problem) -> bytes:
        """Return a line with the error."""
        return ollama_shape(problem) + b"\n"

    def ping(self) -> bytes:
        """Return a line without content: this format has no comments, and clients add nothing to the answer."""
        return self._line(Content())

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole answer as one object."""
        contents = [content for _, piece in pieces for content in self._read(piece)]
        whole = Content(
            text="".join(content.text for content in contents),
            thinking="".join(content.thinking for content in contents),
            calls=[call for content in contents for call in content.calls],
        )
        return self._last(whole, pieces[-1][1]).rstrip(b"\n")

    def _read(self, piece: Piece) -> list[Content]:
        self._clock.note(piece)
        if self._num_top is not None:
            self._logprobs += [self._logprob(entry, self._num_top) for entry in piece.logprobs]
        if self._context is not None:
            self._context += piece.token_ids
        if not self._parsed:
            return [Content(text=piece.text)] if piece.text else []
        contents = self._contents.read(piece.parts)
        return contents + self._contents.finish(is_cut=piece.is_cut) if piece.finish_reason is not None else contents

    def _line(self, content: Content) -> bytes:
        return self._encoded({**self._head(content), "done": False})

    def _last(self, content: Content, piece: Piece) -> bytes:
        told, clock = self._told, self._clock
        fields = {
            **self._head(content),
            "done": True,
            "done_reason": piece.finish_reason or "stop",
            "total_duration": nanoseconds(time.monotonic() - told.begun_s),
            "load_duration": nanoseconds(told.load_s),
            "prompt_eval_count": told.num_prompt_tokens,
            "prompt_eval_duration": nanoseconds(clock.prompt_s),
            "eval_count": clock.num_tokens,
            "eval_duration": nanoseconds(clock.generation_s),
        }
        if self._context is not None:
            fields["context"] = self._context
        return self._encoded(fields)

    def _head(self, content: Content) -> dict[str, Any]:
        return {"model": self._told.model, "created_at": now(), **self._shape(content)}

    def _encoded(self, fields: dict[str, Any]) -> bytes:
        if self._logprobs:
            fields["logprobs"], self._logprobs = self._logprobs, []
        return _encode(fields) + b"\n"

    def _logprob(self, entry: TokenLogprobs, num_top: int) -> TokenLogprob:
        top = zip(entry.top_ids[:num_top], entry.top_logprobs[:num_top], strict=True)
        own = self._token(entry.token_id, entry.logprob)
        return msgspec.structs.replace(own, top_logprobs=[self._token(*each) for each in top]) if num_top else own

    def _token(self, token_id: int, logprob: float) -> TokenLogprob:
        data = self._tokenizer.token_bytes(token_id)
        return TokenLogprob(token=data.decode(errors="replace"), logprob=finite(logprob), bytes=list(data))
