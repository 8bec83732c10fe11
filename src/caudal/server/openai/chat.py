"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from caudal import __version__
from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.answer_writer import EVENT_STREAM, PING, by_answer, sse
from caudal.server.conversation import new_answer, read_conversation
from caudal.server.generation_response import GenerationResponse
from caudal.server.openai.chat_fields import conversation_of, num_logprobs
from caudal.server.openai.chat_parts import ChunkParts, message_of
from caudal.server.openai.chat_protocol import (
    CHAT_REFUSED,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
    TokenLogprob,
    TopLogprob,
)
from caudal.server.openai.output_fields import output_rule_of
from caudal.server.openai.sampling_fields import (
    asked_tokens,
    check_request_fields,
    choice_params,
    refuse_unsupported,
    sampling_params,
)
from caudal.server.openai.token_labels import finite, label, prompt_logprob_maps
from caudal.server.openai.usage import Usage, UsageCount, wants_usage
from caudal.server.output_rules import grammar_for
from caudal.server.problems import openai_shape

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.messages import TokenLogprobs
    from caudal.server.answer_reader import Piece
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.problems import Problem
    from caudal.server.tokenizer_port import ServedTokenizer

FINGERPRINT = f"caudal-{__version__}"
DONE = b"data: [DONE]\n\n"
LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
"""The names of an answer's limit: OpenAI's, its older one, and llama.cpp's. The first that is given counts."""

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


async def chat_completions(call: Call) -> Response:
    """Answer a conversation."""
    body = await call.body(_decoder)
    if body.model is None and call.request.scope["path"].startswith("/v1/"):
        message = "model is missing; name one of /v1/models, or use /chat/completions, which takes the default"
        raise InvalidParameter(message, parameter="model")
    model = await call.model(body.model)
    _refuse(body)
    prompt = await read_conversation(conversation_of(body), model, num_chars=call.num_bytes)
    room = model.room_for_answer(prompt.token_ids, asked_tokens(body, LIMITS), "messages")
    params = sampling_params(body, model.tokenizer, max_tokens=room, logprobs=num_logprobs(body))
    grammar = await grammar_for(output_rule_of(body), model, prompt, call=call)
    id_ = f"chatcmpl-{secrets.token_hex(16)}"
    answers = [
        new_answer(
            f"{id_}-{i}",
            prompt,
            choice_params(params, i),
            call=call,
            model=model,
            priority=body.priority,
            salt=body.cache_salt,
            include_stop=bool(body.include_stop_str_in_output),
            grammar=grammar,
        )
        for i in range(params.n)
    ]
    writer = ChatWriter(id_, body, model, num_prompt_tokens=len(prompt.token_ids), n=params.n)
    return GenerationResponse(call, model, answers=answers, writer=writer, stream=bool(body.stream))


def _refuse(body: ChatRequest) -> None:
    refuse_unsupported(body, CHAT_REFUSED)
    check_request_fields(body)
    if body.modalities not in (None, [], ["text"]):
        message = f"modalities is {body.modalities}; only ['text'] is supported"
        raise UnsupportedParameter(message, parameter="modalities")


class ChatWriter:
    """Pieces in the shapes of this endpoint."""

    stream_type = EVENT_STREAM

    def __init__(self, id_: str, body: ChatRequest, model: LoadedModel, *, num_prompt_tokens: int, n: int) -> None:
        self._id = id_
        self._created = int(time.time())
        self._model = body.model or model.name
        self._tokenizer = model.tokenizer
        self._num_top = num_logprobs(body)
        self._counts = UsageCount([num_prompt_tokens], n)
        self._n = n
        self._include_usage, self._continuous_usage = wants_usage(body.stream_options if body.stream else None)
        self._hides_reasoning = body.include_reasoning is False
        self._parts = [ChunkParts(hides_reasoning=self._hides_reasoning) for _ in range(n)]
        self._begun = [False] * n

    def begin(self) -> bytes:
        """Return nothing: the role comes with the first token, so that clients can time it."""
        return b""

    def events(self, index: int, piece: Piece) -> bytes:
        """Return the chunks of a piece: the role before an answer's first one, the reason after its last."""
        self._counts.add(index, piece)
        events: list[bytes] = []
        if not self._begun[index]:
            self._begun[index] = True
            events.append(self._chunk(ChunkChoice(index=index, delta=Delta(role="assistant", content=""))))
        parts = self._parts[index]
        deltas = parts.deltas(piece.parts)
        if piece.finish_reason is not None:
            deltas += parts.end(is_cut=piece.is_cut)
        logprobs = self._logprobs([piece])
        if not deltas and logprobs is not None and logprobs.content:
            deltas = [Delta(content="")]
        for delta in deltas:
            events.append(self._chunk(ChunkChoice(index=index, delta=delta, logprobs=logprobs)))
            logprobs = None
        if piece.finish_reason is not None:
            reason = parts.finish_reason(piece.finish_reason)
            choice = ChunkChoice(index=index, delta=Delta(), finish_reason=reason, stop_reason=piece.stop_reason)
            events.append(self._chunk(choice))
        return b"".join(events)

    def end(self) -> bytes:
        """Return the usage chunk, if it was asked for, and the end."""
        return (self._encode_chunk([], self._counts.usage()) if self._include_usage else b"") + DONE

    def failure(self, problem: Problem) -> bytes:
        """Return an error event; the stream ends without [DONE]."""
        return sse(openai_shape(problem), "error")

    def ping(self) -> bytes:
        """Return a comment."""
        return PING

    def body(self, pieces: list[tuple[int, Piece]]) -> bytes:
        """Return the whole completion."""
        for index, piece in pieces:
            self._counts.add(index, piece)
        choices = [self._choice(i, own) for i, own in enumerate(by_answer(pieces, self._n))]
        prompt_logprobs = next((p.prompt_logprobs for _, p in pieces if p.prompt_logprobs is not None), None)
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            usage=self._counts.usage(),
            prompt_logprobs=UNSET if prompt_logprobs is None else prompt_logprob_maps(prompt_logprobs, self._tokenizer),
        )
        return _encode(completion)

    def _choice(self, index: int, pieces: list[Piece]) -> ChatChoice:
        last = pieces[-1]
        parts = [part for piece in pieces for part in piece.parts]
        message = message_of(parts, is_cut=last.is_cut, hides_reasoning=self._hides_reasoning)
        reason = last.finish_reason or "stop"
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(pieces),
            finish_reason="tool_calls" if message.tool_calls and reason == "stop" else reason,
            stop_reason=last.stop_reason,
        )

    def _logprobs(self, pieces: list[Piece]) -> ChatLogprobs | None:
        if self._num_top is None:
            return None
        return ChatLogprobs(
            [token_logprob(entry, self._num_top, self._tokenizer) for piece in pieces for entry in piece.logprobs]
        )

    def _chunk(self, choice: ChunkChoice) -> bytes:
        usage: Usage | UnsetType | None = UNSET
        if self._include_usage:
            usage = self._counts.usage() if self._continuous_usage else None
        return self._encode_chunk([choice], usage)

    def _encode_chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            usage=usage,
        )
        return sse(_encode(chunk))


def token_logprob(entry: TokenLogprobs, num_top: int, tokenizer: ServedTokenizer) -> TokenLogprob:
    """Return a token's entry, with its likeliest alternatives."""
    top = zip(entry.top_ids[:num_top], entry.top_logprobs[:num_top], strict=True)
    data = tokenizer.token_bytes(entry.token_id)
    return TokenLogprob(
        label(data),
        finite(entry.logprob),
        list(data),
        [
            TopLogprob(label(other), finite(value), list(other))
            for other, value in ((tokenizer.token_bytes(token_id), value) for token_id, value in top)
        ],
    )
