"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response, StreamingResponse

from caudal.errors import PromptTooLong
from caudal.server.answer_writer import EVENT_STREAM, STREAM_HEADERS
from caudal.server.conversation import new_answer, read_conversation
from caudal.server.generation_response import GenerationResponse
from caudal.server.item_limit import check_num_items
from caudal.server.loaded_model import LONG_TEXT_CHARS
from caudal.server.openai.chat import token_logprob
from caudal.server.output_rules import grammar_for
from caudal.server.problems import describe_error
from caudal.server.responses.background import Run
from caudal.server.responses.fields import (
    SEALED_REASONING,
    check_fields,
    check_own_fields,
    conversation_of,
    new_response,
    output_rule_of,
    prompt_failure,
    request_tools,
    sampling_params,
    wants_logprobs,
    wants_summary,
)
from caudal.server.responses.output import Output
from caudal.server.responses.request_protocol import ConversationBody, InputItem, ResponsesBody
from caudal.server.responses.response_writer import ResponseWriter

if TYPE_CHECKING:
    from caudal.server.answers import Answer
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel

_responses_decoder = msgspec.json.Decoder(ResponsesBody)
_count_decoder = msgspec.json.Decoder(ConversationBody)
_encode = msgspec.json.Encoder().encode


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What input_tokens answers."""

    object: str = "response.input_tokens"
    input_tokens: int


async def create_response(call: Call) -> Response:
    """Answer a conversation."""
    body = await call.body(_responses_decoder)
    check_fields(body)
    check_own_fields(body)
    tools = request_tools(body)
    earlier, own = _items(body, call)
    chat, rule = conversation_of(body, [*earlier, *own], tools), output_rule_of(body)
    model = await call.model(body.model)
    try:
        prompt = await read_conversation(chat, model, num_chars=_num_chars(body, call), parameter="input")
        room = model.room_for_answer(prompt.token_ids, body.max_output_tokens, "input")
    except PromptTooLong as error:
        if not body.stream:
            raise
        return _failed_stream(body, error)
    params = sampling_params(body, room)
    response = new_response(body, tools, params)
    labels = partial(token_logprob, num_top=body.top_logprobs or 0, tokenizer=model.tokenizer)
    kept = call.context.responses
    writer = ResponseWriter(
        response,
        Output(tools.names, as_summary=wants_summary(body), is_sealed=SEALED_REASONING in (body.include or [])),
        num_prompt_tokens=len(prompt.token_ids),
        labels=labels if wants_logprobs(body) else None,
        ended=(lambda ended: kept.keep(call.tenant, ended, own, earlier)) if response.store else None,
    )
    grammar = await grammar_for(rule, model, prompt, call=call)
    answer = new_answer(response.id, prompt, params, call=call, model=model, grammar=grammar)
    if body.background:
        return await _in_background(call, model, answer, writer, stream=bool(body.stream))
    return GenerationResponse(call, model, answers=[answer], writer=writer, stream=bool(body.stream))


async def count_input_tokens(call: Call) -> Response:
    """Count the tokens of a conversation as the model would read it."""
    body = await call.body(_count_decoder)
    check_fields(body)
    earlier, own = _items(body, call)
    chat = conversation_of(body, [*earlier, *own], request_tools(body))
    model = await call.model(body.model)
    prompt = await read_conversation(chat, model, num_chars=_num_chars(body, call), parameter="input", counts=True)
    return Response(_encode(InputTokens(input_tokens=len(prompt.token_ids))), media_type="application/json")


def _items(body: ConversationBody, call: Call) -> tuple[list[InputItem], list[InputItem]]:
    """Return the items that the request continues, and its own."""
    kept = call.context.responses
    previous = body.previous_response_id
    earlier = kept.conversation(call.tenant, previous) if previous else []
    given = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input or []
    own = kept.resolved(call.tenant, given, earlier)
    check_num_items(len(earlier) + len(own), "input")
    return earlier, own


def _num_chars(body: ConversationBody, call: Call) -> int:
    """Return how much there is to read: an earlier conversation may be long, however short what is new."""
    return call.num_bytes if body.previous_response_id is None else max(call.num_bytes, LONG_TEXT_CHARS)


def _failed_stream(body: ResponsesBody, error: PromptTooLong) -> Response:
    """Tell in a stream that the prompt does not fit: that is where Codex looks for it."""
    writer = ResponseWriter(prompt_failure(body), Output(request_tools(body).names), num_prompt_tokens=0)
    events = writer.begin() + writer.failure(describe_error(error))
    return Response(events, media_type=EVENT_STREAM, headers=STREAM_HEADERS)


async def _in_background(
    call: Call, model: LoadedModel, answer: Answer, writer: ResponseWriter, *, stream: bool
) -> Response:
    """Begin a response that goes on whether or not somebody waits for it, in its request's name and with its model."""
    model.metrics.asked([answer])
    queued = _encode(writer.response)
    held = AsyncExitStack()
    held.enter_context(call.context.admission.admit(1, call.tenant))
    held.push_async_exit(call.outlive())  # from here on nothing may fail before the run has begun
    run = Run(answer, model, writer, held)
    await call.context.responses.runs.start(call.tenant, run)
    if stream:
        events = run.events(call.settings.ping_interval_s)
        return StreamingResponse(events, media_type=EVENT_STREAM, headers=STREAM_HEADERS)
    return Response(queued, media_type="application/json")
