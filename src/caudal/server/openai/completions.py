"""POST /v1/completions: text or token ids in, text out; prompts in batches, echo and log-probabilities."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from caudal.server.answer_reader import Piece
from caudal.server.answer_writer import EVENT_STREAM, PING, by_answer, sse
from caudal.server.conversation import new_answer
from caudal.server.generation_response import GenerationResponse
from caudal.server.openai.chat import DONE, FINGERPRINT
from caudal.server.openai.completion_protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from caudal.server.openai.output_fields import output_rule_of
from caudal.server.openai.sampling_fields import (
    asked_tokens,
    check_request_fields,
    check_token_ids,
    choice_params,
    refuse_unsupported,
    sampling_params,
)
from caudal.server.openai.texts import read_texts
from caudal.server.openai.token_labels import finite, label, prompt_logprob_maps
from caudal.server.openai.usage import Usage, UsageCount, wants_usage
from caudal.server.output_rules import grammar_for
from caudal.server.problems import openai_shape

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.messages import TokenLogprobs
    from caudal.sampling_params import SamplingParams
    from caudal.server.answers import Answer
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.problems import Problem

DEFAULT_MAX_TOKENS = 16
LIMITS = ("max_tokens", "n_predict")
_decoder = msgspec.json.Decoder(CompletionRequest)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it was given and as the model reads it."""

    text: str
    token_ids: list[int]


async def completions(call: Call) -> Response:
    """Continue one or more prompts."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    refuse_unsupported(body, ("suffix",))
    check_request_fields(body)
    prompts = await read_prompts(body, model, most=call.settings.max_open_requests)
    params = _params(body, model)
    grammar = await grammar_for(output_rule_of(body), model, call=call)
    id_ = f"cmpl-{secrets.token_hex(16)}"
    answers = [
        _answer(f"{id_}-{p * params.n + i}", prompt, choice_params(params, i), body, call, model, grammar)
        for p, prompt in enumerate(prompts)
        for i in range(params.n)
    ]
    writer = CompletionWriter(id_, body, model, prompts, n=params.n)
    return GenerationResponse(call, model, answers=answers, writer=writer, stream=bool(body.stream))


def _params(body: CompletionRequest, model: LoadedModel) -> SamplingParams:
    """Return the parameters of every answer. Scoring (max_tokens 0) generates a token that nobody sees."""
    max_tokens = 1 if scores_only(body) else asked_tokens(body, LIMITS, DEFAULT_MAX_TOKENS)
    params = sampling_params(body, model.tokenizer, max_tokens=max_tokens, logprobs=body.logprobs)
    if body.echo and body.logprobs is not None:
        wanted = max(body.logprobs, params.prompt_logprobs or 0)
        params = msgspec.structs.replace(params, prompt_logprobs=wanted)
    return params


def scores_only(body: CompletionRequest) -> bool:
    """Whether the request wants its prompt back, with log-probabilities or without, and no new text."""
    return body.max_tokens == 0 and (bool(body.echo) or body.prompt_logprobs is not None)


def _answer(
    request_id: str,
    prompt: Prompt,
    params: SamplingParams,
    body: CompletionRequest,
    call: Call,
    model: LoadedModel,
    grammar: str,
) -> Answer:
    room = model.room_for_answer(prompt.token_ids, params.max_tokens, "prompt")
    return new_answer(
        request_id,
        prompt.token_ids,
        msgspec.structs.replace(params, max_tokens=room),
        call=call,
        model=model,
        priority=body.priority,
        salt=body.cache_salt,
        include_stop=bool(body.include_stop_str_in_output),
        grammar=grammar,
    )


async def read_prompts(body: CompletionRequest, model: LoadedModel, *, most: int) -> list[Prompt]:
    """Return the prompts with their token ids, at most so many.

    Raises:
        InvalidParameter: no prompt, a mixture of ids and texts, or an id outside the vocabulary.
        PromptTooLong: more token ids than the model reads.
    """
    prompts = read_texts(body.prompt, "prompt", model, most=most)
    special = body.add_special_tokens is not False
    return await model.tokenize(
        lambda: [_read_prompt(prompt, model, special=special, echo=bool(body.echo)) for prompt in prompts],
        sum(map(len, prompts)),
    )


def _read_prompt(prompt: str | list[int], model: LoadedModel, *, special: bool, echo: bool) -> Prompt:
    tokenizer = model.tokenizer
    if isinstance(prompt, str):
        model.check_text(len(prompt), "prompt")
        return Prompt(prompt, tokenizer.encode(prompt, add_special_tokens=special, parse_special=True))
    check_token_ids(prompt, tokenizer, "prompt")
    return Prompt(tokenizer.decode(prompt) if echo else "", prompt)


class CompletionWriter:
    """Pieces in the shapes of this endpoint. Answer i belongs to prompt i // n."""

    stream_type = EVENT_STREAM

    def __init__(self, id_: str, body: CompletionRequest, model: LoadedModel, prompts: list[Prompt], *, n: int) -> None:
        self._id = id_
        self._created = int(time.time())
        self._model = body.model or model.name
        self._tokenizer = model.tokenizer
        self._prompts = prompts
        self._n = n
        self._echo = bool(body.echo)
        self._hides_answer = scores_only(body)
        self._num_top = body.logprobs
        self._wants_prompt_logprobs = body.prompt_logprobs is not None
        self._counts = UsageCount([len(prompt.token_ids) for prompt in prompts], n)
        self._include_usage, self._continuous_usage = wants_usage(body.stream_options if body.stream else None)
        self._begun = [False] * (len(prompts) * n)

    def begin(self) -> bytes:
        """Return nothing."""
        return b""

    def events(self, index: int, piece: Piece) -> bytes:
        """Return the chunks of a piece; an echoed prompt comes with the first."""
        choice = self._choice(index, [piece], first=not self._begun[index])
        self._begun[index] = True
        if not (choice.text or choice.finish_reason or (choice.logprobs and choice.logprobs.tokens)):
            return b""
        usage: Usage | UnsetType | None = UNSET
        if self._include_usage:
            usage = self._counts.usage() if self._continuous_usage else None
        return sse(self._encode([choice], usage))

    def end(self) -> bytes:
        """Return the usage chunk, if it was asked for, and the end."""
        return (sse(self._encode([], self._counts.usage())) if self._include_usage else b"") + DONE

    def failure(self, problem: Problem) -> bytes:
        """Return an error event; the stream ends without [DONE]."""
        return sse(openai_shape(problem), "error")

    def ping(self) -> bytes:
        """Return a comment."""
        return PING

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole completion."""
        by_index = by_answer(pieces, len(self._begun))
        choices = [self._choice(i, own, first=True) for i, own in enumerate(by_index)]
        return self._encode(choices, self._counts.usage())

    def _choice(self, index: int, pieces: list[Piece], *, first: bool) -> CompletionChoice:
        if self._hides_answer:
            pieces = [_without_answer(piece) for piece in pieces]
        for piece in pieces:
            self._counts.add(index, piece)
        prompt = self._prompts[index // self._n]
        echoed = prompt.text if self._echo and first else ""
        prompt_logprobs = next((p.prompt_logprobs for p in pieces if p.prompt_logprobs is not None), None)
        return CompletionChoice(
            index=index,
            text=echoed + "".join(piece.text for piece in pieces),
            logprobs=self._logprobs(prompt, pieces, prompt_logprobs),
            finish_reason=pieces[-1].finish_reason,
            stop_reason=pieces[-1].stop_reason,
            prompt_logprobs=prompt_logprob_maps(prompt_logprobs, self._tokenizer)
            if self._wants_prompt_logprobs and prompt_logprobs is not None
            else UNSET,
        )

    def _logprobs(
        self, prompt: Prompt, pieces: list[Piece], prompt_logprobs: list[TokenLogprobs | None] | None
    ) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        columns = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        if self._echo and prompt_logprobs is not None:
            detokenizer = self._tokenizer.detokenizer([])
            num_chars = 0
            for token_id, entry in zip(prompt.token_ids, prompt_logprobs, strict=True):
                self._add_column(columns, num_chars, token_id, entry)
                num_chars += len(detokenizer.push([token_id]))
        base = len(prompt.text) if self._echo else 0
        for piece in pieces:
            for offset, entry in zip(piece.offsets, piece.logprobs, strict=True):
                self._add_column(columns, base + offset, entry.token_id, entry)
        return columns

    def _add_column(self, columns: CompletionLogprobs, offset: int, token_id: int, entry: TokenLogprobs | None) -> None:
        text = label(self._tokenizer.token_bytes(token_id))
        columns.text_offset.append(offset)
        columns.tokens.append(text)
        if entry is None:
            columns.token_logprobs.append(None)
            columns.top_logprobs.append(None)
            return
        assert self._num_top is not None
        top = zip(entry.top_ids[: self._num_top], entry.top_logprobs[: self._num_top], strict=True)
        likeliest = {label(self._tokenizer.token_bytes(other)): finite(value) for other, value in top}
        columns.token_logprobs.append(finite(entry.logprob))
        columns.top_logprobs.append({**likeliest, text: finite(entry.logprob)})

    def _encode(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> bytes:
        completion = Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            usage=usage,
        )
        return _encode(completion)


def _without_answer(piece: Piece) -> Piece:
    """Return what a piece says about the prompt alone."""
    return Piece(
        prompt_logprobs=piece.prompt_logprobs,
        num_cached_tokens=piece.num_cached_tokens,
        finish_reason=None if piece.finish_reason is None else "length",
    )
