"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from caudal.errors import PromptTooLong
from caudal.server.anthropic.answer_protocol import TokenCount
from caudal.server.anthropic.fields import conversation_of, output_rule_of, sampling_params
from caudal.server.anthropic.message_writer import MessageWriter
from caudal.server.anthropic.request_protocol import ConversationBody, MessagesBody
from caudal.server.conversation import new_answer, read_conversation
from caudal.server.generation_response import GenerationResponse
from caudal.server.output_rules import grammar_for

if TYPE_CHECKING:
    from caudal.server.call import Call

_messages_decoder = msgspec.json.Decoder(MessagesBody)
_count_decoder = msgspec.json.Decoder(ConversationBody)


async def create_message(call: Call) -> Response:
    """Answer a conversation."""
    body = await call.body(_messages_decoder)
    chat, rule = conversation_of(body), output_rule_of(body)
    model = await call.model(body.model)
    try:
        prompt = await read_conversation(chat, model, num_chars=call.num_bytes)
        room = model.room_for_answer(prompt.token_ids, max(body.max_tokens, 1), "messages")
    except PromptTooLong as error:
        raise _too_long(error) from error
    params = sampling_params(body, room)
    id_ = f"msg_{secrets.token_hex(12)}"
    grammar = await grammar_for(rule, model, prompt, call=call)
    answer = new_answer(id_, prompt, params, call=call, model=model, grammar=grammar)
    writer = MessageWriter(
        id_,
        body.model,
        num_prompt_tokens=len(prompt.token_ids),
        ends_with_context=room is not None and room < body.max_tokens,
        hides_thinking=body.thinking is not None and body.thinking.display == "omitted",
        request_id=call.request_id,
    )
    return GenerationResponse(call, model, answers=[answer], writer=writer, stream=bool(body.stream))


async def count_tokens(call: Call) -> Response:
    """Count the tokens of a conversation as the model would read it."""
    body = await call.body(_count_decoder)
    chat = conversation_of(body)
    model = await call.model(body.model)
    prompt = await read_conversation(chat, model, num_chars=call.num_bytes, counts=True)
    return Response(msgspec.json.encode(TokenCount(len(prompt.token_ids))), media_type="application/json")


def _too_long(error: PromptTooLong) -> PromptTooLong:
    """Return the refusal in the words from which clients read both numbers; the first is at least so large."""
    longest = (error.max_model_len or 1) - 1
    message = f"prompt is too long: {error.num_prompt_tokens} tokens > {longest} maximum"
    return PromptTooLong(message, parameter="messages")
