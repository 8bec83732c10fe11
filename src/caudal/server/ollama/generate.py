"""POST /api/generate: a prompt through the model's template, raw, or with a gap to fill in."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.conversation import ChatPrompt, new_answer, read_conversation
from caudal.server.fill_in import Gap, fill_in_prompt
from caudal.server.generation_response import GenerationResponse
from caudal.server.ollama.answer_lines import Content, LineWriter, Told, generate_fields
from caudal.server.ollama.conversations import prompt_conversation, refuse_images
from caudal.server.ollama.format_rules import grammar_of
from caudal.server.ollama.names import look_for_model
from caudal.server.ollama.options import asked_tokens, num_logprobs, sampling_params
from caudal.server.ollama.protocol import GenerateRequest
from caudal.server.ollama.residence import keep_loaded, residence_answer
from caudal.server.openai.sampling_fields import check_token_ids

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel

_decoder = msgspec.json.Decoder(GenerateRequest)


async def generate(call: Call) -> Response:
    """Continue a prompt. Without one the model is loaded, or unloaded with keep_alive 0."""
    begun_s = time.monotonic()
    body = await call.body(_decoder)
    served = await look_for_model(call, body.model)
    _refuse(body)
    if not body.prompt and not body.suffix:
        return await residence_answer(call, served, body, generate_fields(Content()))
    model = await call.model(served.name)
    load_s = time.monotonic() - begun_s
    keep_loaded(call, served, body)
    prompt = await _read_prompt(body, model, call.num_bytes)
    token_ids = prompt.token_ids if isinstance(prompt, ChatPrompt) else prompt
    room = model.room_for_answer(token_ids, asked_tokens(body), "prompt")
    params = sampling_params(body, max_tokens=room)
    grammar = await grammar_of(body.format, model, prompt if isinstance(prompt, ChatPrompt) else None, call)
    answer = new_answer(f"ollama-{secrets.token_hex(16)}", prompt, params, call=call, model=model, grammar=grammar)
    told = Told(
        model=body.model or served.name,
        num_prompt_tokens=len(token_ids),
        begun_s=begun_s,
        load_s=load_s,
        context=None if body.raw else token_ids,
    )
    parsed = isinstance(prompt, ChatPrompt)
    writer = LineWriter(told, generate_fields, model, num_top=num_logprobs(body), parsed=parsed)
    return GenerationResponse(call, model, answers=[answer], writer=writer, stream=body.stream is not False)


def _refuse(body: GenerateRequest) -> None:
    refuse_images(body.images)
    if body.template:
        message = "template is not supported: the model's own chat template is used; send raw true for a bare prompt"
        raise UnsupportedParameter(message, parameter="template")
    if body.raw and (body.system or body.context):
        message = "raw excludes system and context; put everything into the prompt"
        raise InvalidParameter(message, parameter="raw")


async def _read_prompt(body: GenerateRequest, model: LoadedModel, num_chars: int) -> list[int] | ChatPrompt:
    """Return the prompt: with a gap, in a template, or bare where that is asked for or the model has no template."""
    text = body.prompt or ""
    if body.suffix:
        if model.tokenizer.fim_tokens is None:
            message = f"the model {model.name!r} does not support insert; leave suffix out, or use a model for code"
            raise UnsupportedParameter(message, parameter="suffix")
        return await fill_in_prompt(Gap(before=text, after=body.suffix), model)
    tokenizer = model.tokenizer
    if not body.raw and tokenizer.chat_template_source:
        prompt = await read_conversation(
            prompt_conversation(body, model), model, num_chars=num_chars, parameter="prompt"
        )
        return replace(prompt, token_ids=_after_context(body, prompt.token_ids, model))
    bare = f"{body.system}\n\n{text}" if body.system else text

    def work() -> list[int]:
        model.check_text(len(bare), "prompt")
        return tokenizer.encode(bare, parse_special=True)

    token_ids = await model.tokenize(work, num_chars)
    return _after_context(body, token_ids, model)


def _after_context(body: GenerateRequest, token_ids: list[int], model: LoadedModel) -> list[int]:
    """Return a prompt after the context of an earlier answer. The token that begins a text stands there once."""
    if not body.context:
        return token_ids
    check_token_ids(body.context, model.tokenizer, "context")
    first = model.tokenizer.bos_token_id
    return body.context + (token_ids[1:] if first is not None and token_ids[:1] == [first] else token_ids)
