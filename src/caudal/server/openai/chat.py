"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from caudal import __version__
from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import MAX_LOGPROBS
from caudal.server.generation_response import GenerationResponse, by_answer
from caudal.server.openai.chat_protocol import (
    CHAT_REFUSED,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChunkChoice,
    Delta,
    TokenLogprob,
    TopLogprob,
)
from caudal.server.openai.new_answer import new_answer
from caudal.server.openai.sampling_fields import (
    check_request_fields,
    choice_params,
    refuse_unsupported,
    sampling_params,
)
from caudal.server.openai.token_labels import finite, label, prompt_logprob_maps
from caudal.server.openai.usage import Usage, UsageCount, wants_usage
from caudal.server.request_body import parse_body, read_body

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from caudal.messages import TokenLogprobs
    from caudal.server.answer_reader import Piece
    from caudal.server.context import ServerContext
    from caudal.server.tokenizer_port import ServedTokenizer

FINGERPRINT = f"caudal-{__version__}"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_RESERVED_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt", "continue_final_message"})
_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


async def chat_completions(request: Request, context: ServerContext) -> Response:
    """Answer a conversation."""
    data = await read_body(request, context.settings.max_body_bytes)
    body = parse_body(data, _decoder)
    context.check_model(body.model)
    _refuse(body)
    prompt = await chat_prompt(body, context, num_chars=len(data))
    asked = _asked_tokens(body)
    room = context.room_for_answer(prompt, asked, "messages")
    params = sampling_params(body, context.tokenizer, max_tokens=room, logprobs=_num_logprobs(body))
    id_ = f"chatcmpl-{secrets.token_hex(16)}"
    answers = [new_answer(f"{id_}-{i}", prompt, choice_params(params, i), body, context) for i in range(params.n)]
    return GenerationResponse(
        client=context.client,
        answers=answers,
        writer=ChatWriter(id_, body, context, num_prompt_tokens=len(prompt), n=params.n),
        stream=bool(body.stream),
        admission=context.admission,
        settings=context.settings,
    )


def _refuse(body: ChatRequest) -> None:
    refuse_unsupported(body, CHAT_REFUSED)
    check_request_fields(body)
    for name in ("tool_choice", "function_call"):
        if getattr(body, name) not in (None, "none", "auto"):
            message = f"{name} is not supported by this server; leave it out, or send 'none' or 'auto'"
            raise UnsupportedParameter(message, parameter=name)
    if body.modalities not in (None, [], ["text"]):
        message = f"modalities is {body.modalities}; only ['text'] is supported"
        raise UnsupportedParameter(message, parameter="modalities")


def _asked_tokens(body: ChatRequest) -> int | None:
    """Return how long the answer may be; max_tokens is the older name of max_completion_tokens."""
    asked = body.max_completion_tokens
    if asked is None:
        return body.max_tokens
    if asked < 1:
        message = f"max_completion_tokens is {asked}; expected at least 1"
        raise InvalidParameter(message, parameter="max_completion_tokens")
    return asked


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        message = f"top_logprobs is {body.top_logprobs}; expected a number from 0 to {MAX_LOGPROBS}"
        raise InvalidParameter(message, parameter="top_logprobs")
    if not body.logprobs:
        if body.top_logprobs:
            message = "top_logprobs needs logprobs; send logprobs true, or leave top_logprobs out"
            raise InvalidParameter(message, parameter="top_logprobs")
        return None
    return body.top_logprobs or 0


async def chat_prompt(body: ChatRequest, context: ServerContext, *, num_chars: int) -> list[int]:
    """Return the conversation's token ids, by the model's template. `num_chars` says how much work that is.

    Raises:
        RequestError: the template refuses it, or the messages have parts that are not supported.
    """
    if not body.messages:
        message = "messages is empty; expected at least one message"
        raise InvalidParameter(message, parameter="messages")
    messages = [template_message(message) for message in body.messages]
    variables = dict(body.chat_template_kwargs or {})
    reserved = sorted(_RESERVED_VARIABLES.intersection(variables))
    if reserved:
        message = f"chat_template_kwargs has {reserved[0]!r}, which is not a template variable of yours; leave it out"
        raise InvalidParameter(message, parameter="chat_template_kwargs")
    if body.continue_final_message:
        if body.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt exclude each other; send one of them"
            raise InvalidParameter(message, parameter="continue_final_message")
        variables["continue_final_message"] = True
        generation_prompt = False
    else:
        generation_prompt = body.add_generation_prompt is not False
    return await context.tokenize(
        lambda: context.tokenizer.encode_chat(messages, None, add_generation_prompt=generation_prompt, **variables),
        num_chars,
    )


def template_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as the tokenizer takes it: one of the API's roles, content as one string."""
    if message.role not in _ROLES:
        text = f"a message has role {message.role!r}; expected one of {', '.join(_ROLES)}"
        raise InvalidParameter(text, parameter="messages")
    plain: dict[str, Any] = {"role": message.role, "content": _content_text(message)}
    for name in ("name", "tool_calls", "tool_call_id"):
        if getattr(message, name) is not None:
            plain[name] = getattr(message, name)
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        plain["reasoning_content"] = reasoning
    return plain


def _content_text(message: ChatMessage) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for part in message.content:
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "output_text", "refusal") or text is None:
            wanted = f"a message has a content part of type {part.type!r}; only parts of text are supported"
            raise UnsupportedParameter(wanted, parameter="messages")
        texts.append(text)
    return "\n".join(texts)


class ChatWriter:
    """Pieces in the shapes of this endpoint."""

    def __init__(self, id_: str, body: ChatRequest, context: ServerContext, *, num_prompt_tokens: int, n: int) -> None:
        self._id = id_
        self._created = int(time.time())
        self._model = body.model or context.model.name
        self._tokenizer = context.tokenizer
        self._num_top = _num_logprobs(body)
        self._counts = UsageCount([num_prompt_tokens], n)
        self._n = n
        self._include_usage, self._continuous_usage = wants_usage(body.stream_options if body.stream else None)
        self._begun = [False] * n

    def events(self, index: int, piece: Piece) -> list[bytes]:
        """Return the chunks of a piece: the role before an answer's first one, the reason after its last."""
        self._counts.add(index, piece)
        events: list[bytes] = []
        if not self._begun[index]:
            self._begun[index] = True
            events.append(self._chunk(ChunkChoice(index=index, delta=Delta(role="assistant", content=""))))
        logprobs = self._logprobs([piece])
        if piece.text or (logprobs is not None and logprobs.content):
            events.append(self._chunk(ChunkChoice(index=index, delta=Delta(content=piece.text), logprobs=logprobs)))
        if piece.finish_reason is not None:
            choice = ChunkChoice(
                index=index, delta=Delta(), finish_reason=piece.finish_reason, stop_reason=piece.stop_reason
            )
            events.append(self._chunk(choice))
        return events

    def last_events(self) -> list[bytes]:
        """Return the usage chunk, if it was asked for."""
        return [self._encode_chunk([], self._counts.usage())] if self._include_usage else []

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
        return ChatChoice(
            index=index,
            message=AnswerMessage(content="".join(piece.text for piece in pieces)),
            logprobs=self._logprobs(pieces),
            finish_reason=last.finish_reason or "stop",
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
        return _encode(chunk)


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
