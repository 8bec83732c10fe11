"""POST /api/chat."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from caudal.server.conversation import new_answer, read_conversation
from caudal.server.generation_response import GenerationResponse
from caudal.server.ollama.answer_lines import Content, LineWriter, Told, chat_fields
from caudal.server.ollama.conversations import conversation_of
from caudal.server.ollama.format_rules import grammar_of
from caudal.server.ollama.names import look_for_model
from caudal.server.ollama.options import asked_tokens, num_logprobs, sampling_params
from caudal.server.ollama.protocol import ChatRequest
from caudal.server.ollama.residence import keep_loaded, residence_answer

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call

_decoder = msgspec.json.Decoder(ChatRequest)


async def chat(call: Call) -> Response:
    """Answer a conversation. Without messages the model is loaded, or unloaded with keep_alive 0."""
    begun_s = time.monotonic()
    body = await call.body(_decoder)
    served = await look_for_model(call, body.model)
    if not body.messages:
        return await residence_answer(call, served, body, chat_fields(Content()))
    model = await call.model(served.name)
    load_s = time.monotonic() - begun_s
    keep_loaded(call, served, body)
    prompt = await read_conversation(conversation_of(body, model), model, num_chars=call.num_bytes)
    room = model.room_for_answer(prompt.token_ids, asked_tokens(body), "messages")
    params = sampling_params(body, max_tokens=room)
    grammar = await grammar_of(body.format, model, prompt, call)
    answer = new_answer(f"ollama-{secrets.token_hex(16)}", prompt, params, call=call, model=model, grammar=grammar)
    told = Told(
        model=body.model or served.name,
        num_prompt_tokens=len(prompt.token_ids),
        begun_s=begun_s,
        load_s=load_s,
    )
    writer = LineWriter(told, chat_fields, model, num_top=num_logprobs(body), parsed=True)
    return GenerationResponse(call, model, answers=[answer], writer=writer, stream=body.stream is not False)
