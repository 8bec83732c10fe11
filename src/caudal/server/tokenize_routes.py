"""POST /tokenize and /detokenize, in vLLM's shapes and llama-server's: the field that was sent decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from caudal.errors import InvalidParameter
from caudal.server.conversation import read_conversation
from caudal.server.llamacpp.text_routes import ContentFields, content_tokens
from caudal.server.loaded_model import check_counted
from caudal.server.openai.chat_fields import conversation_of
from caudal.server.openai.chat_protocol import CHAT_REFUSED, ChatMessage, ChatRequest, Tool
from caudal.server.openai.sampling_fields import check_token_ids, refuse_unsupported
from caudal.server.openai.token_labels import label

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text (`prompt`), a conversation (`messages`), or what llama-server takes (`content`)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    # Known, and refused as the chat endpoint refuses it.
    chat_template: Any = None
    return_token_strs: bool | None = None
    content: Any = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids, and their texts if asked for."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Their text, under vLLM's name and llama-server's."""

    prompt: str
    content: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)
_encode = msgspec.json.Encoder().encode


async def tokenize(call: Call) -> Response:
    """Return token ids."""
    body = await call.body(_tokenize_decoder)
    model = await call.model(body.model)
    if body.content is not None and body.prompt is None and body.messages is None:
        fields = ContentFields(
            add_special=body.add_special, parse_special=body.parse_special, with_pieces=body.with_pieces
        )
        return Response(
            _encode(await content_tokens(body.content, fields, model, call.num_bytes)), media_type="application/json"
        )
    ids = await _token_ids(body, model, num_chars=call.num_bytes)
    strings = [label(model.tokenizer.token_bytes(i)) for i in ids] if body.return_token_strs else None
    answer = TokenizeResponse(count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=strings)
    return Response(_encode(answer), media_type="application/json")


async def _token_ids(body: TokenizeRequest, model: LoadedModel, *, num_chars: int) -> list[int]:
    if body.messages is not None:
        chat = ChatRequest(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
            tools=body.tools,
            chat_template=body.chat_template,
        )
        refuse_unsupported(chat, CHAT_REFUSED)
        return (await read_conversation(conversation_of(chat), model, num_chars=num_chars, counts=True)).token_ids
    prompt = body.prompt
    if prompt is None:
        message = "neither prompt, messages nor content is given; expected one of them"
        raise InvalidParameter(message, parameter="prompt")
    check_counted(len(prompt), "prompt")
    special = body.add_special_tokens is not False
    return await model.tokenize(
        lambda: model.tokenizer.encode(prompt, add_special_tokens=special, parse_special=True), num_chars
    )


async def detokenize(call: Call) -> Response:
    """Return the text of token ids, control tokens included."""
    body = await call.body(_detokenize_decoder)
    model = await call.model(body.model)
    check_counted(len(body.tokens), "tokens")
    check_token_ids(body.tokens, model.tokenizer, "tokens")
    text = await model.tokenize(
        lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False), len(body.tokens)
    )
    return Response(_encode(DetokenizeResponse(prompt=text, content=text)), media_type="application/json")
