"""Text, tokens and templates without an answer: /apply-template, input_tokens, /tokenizer_info, /tokenize's other form.

Sources: llama.cpp, tools/server/README.md; lm-eval's remote tokenizer for /tokenizer_info.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import JSONResponse, Response

from caudal.server.conversation import read_conversation, template_input
from caudal.server.llamacpp.prompts import num_chars_of, prompts_of, token_ids_of
from caudal.server.loaded_model import check_counted
from caudal.server.openai.chat_fields import conversation_of
from caudal.server.openai.chat_protocol import CHAT_REFUSED, ChatRequest
from caudal.server.openai.sampling_fields import refuse_unsupported

if TYPE_CHECKING:
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel

_decoder = msgspec.json.Decoder(ChatRequest)


async def apply_template(call: Call) -> Response:
    """Return the prompt of a conversation, as text."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    refuse_unsupported(body, CHAT_REFUSED)
    chat = conversation_of(body)
    tools, variables = template_input(chat)
    text = await model.tokenize(lambda: model.tokenizer.render_chat(chat.messages, tools, **variables), call.num_bytes)
    return JSONResponse({"prompt": text})


async def input_tokens(call: Call) -> Response:
    """Return how many tokens a chat request's prompt has."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    refuse_unsupported(body, CHAT_REFUSED)
    prompt = await read_conversation(conversation_of(body), model, num_chars=call.num_bytes, counts=True)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


async def tokenizer_info(call: Call) -> Response:
    """Describe the tokenizer, for clients that use /tokenize and /detokenize in place of one of their own."""
    model = await call.model_to_look_at(call.request.query_params.get("model"))
    tokenizer = model.tokenizer
    return JSONResponse(
        {
            "tokenizer_class": "caudal",
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": model.max_model_len,
            "bos_token": tokenizer.bos_token or None,
            "eos_token": tokenizer.eos_token or None,
            "eos_token_ids": list(tokenizer.eos_token_ids),
            "pad_token": tokenizer.eos_token or None,
            "chat_template": tokenizer.chat_template_source or None,
        }
    )


class ContentFields(msgspec.Struct, frozen=True, kw_only=True):
    """How llama-server's form of /tokenize reads its text."""

    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


async def content_tokens(content: Any, fields: ContentFields, model: LoadedModel, num_chars: int) -> dict[str, Any]:
    """Return the answer of /tokenize to a `content`: text, token ids, or a mixture of both."""
    prompts = prompts_of(content, "content") if content not in ("", []) else [""]

    def work() -> list[int]:
        check_counted(sum(map(num_chars_of, prompts)), "content")
        return [
            token_id
            for number, prompt in enumerate(prompts)
            for token_id in token_ids_of(
                prompt,
                model.tokenizer,
                add_special=bool(fields.add_special) and number == 0,
                parse_special=fields.parse_special is not False,
                parameter="content",
            )
        ]

    ids = await model.tokenize(work, num_chars)
    if not fields.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token_id, "piece": _piece(model.tokenizer.token_bytes(token_id))} for token_id in ids]}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
