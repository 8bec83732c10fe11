"""POST /completion, and /completions where the body is llama-server's: text or token ids in, text out."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from caudal.errors import InvalidParameter
from caudal.server.conversation import new_answer
from caudal.server.generation_response import GenerationResponse
from caudal.server.llamacpp.completion_writer import CompletionWriter, Wanted
from caudal.server.llamacpp.error_shape import llamacpp_shape
from caudal.server.llamacpp.output_rules import grammar_of
from caudal.server.llamacpp.prompts import read_prompts
from caudal.server.llamacpp.protocol import NATIVE_ONLY, CompletionRequest
from caudal.server.llamacpp.sampling import asked_tokens, num_answers, num_logprobs, sampling_params, settings_of
from caudal.server.openai.completions import completions
from caudal.server.openai.sampling_fields import choice_params
from caudal.server.request_body import parse_body

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.sampling_params import SamplingParams
    from caudal.server.answers import Answer
    from caudal.server.call import Call
    from caudal.server.llamacpp.prompts import Prompt
    from caudal.server.llamacpp.protocol import NativeRequest
    from caudal.server.loaded_model import LoadedModel

_decoder = msgspec.json.Decoder(CompletionRequest)
_names_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def completion(call: Call) -> Response:
    """Continue one or more prompts."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    prompts = await read_prompts(body.prompt, model, most=call.settings.max_open_requests, num_chars=call.num_bytes)
    return await completion_response(call, model, body, prompts)


async def either_completions(call: Call) -> Response:
    """Answer /completions, which is OpenAI's and llama-server's: a field that only the latter has decides."""
    names = parse_body(await call.data(), _names_decoder)
    if NATIVE_ONLY.isdisjoint(names):
        return await completions(call)
    call.shape = llamacpp_shape
    return await completion(call)


async def completion_response(call: Call, model: LoadedModel, body: NativeRequest, prompts: list[Prompt]) -> Response:
    """Return the answer to prompts.

    Raises:
        RequestError: a field that is not supported or makes no sense, or a prompt that does not fit.
    """
    asked = asked_tokens(body)
    params = sampling_params(body, model.tokenizer, max_tokens=asked or None)
    grammar = await grammar_of(body, model, call)
    n = num_answers(body)
    wanted = Wanted(
        settings=settings_of(params, asked, stream=bool(body.stream), eos_token_ids=model.tokenizer.eos_token_ids),
        num_probs=num_logprobs(body),
        nothing=asked == 0,
        tokens=bool(body.return_tokens),
        progress=bool(body.return_progress),
        timings=bool(body.timings_per_token),
        fields=tuple(body.response_fields or ()),
    )
    if asked == 0:  # the engine's requests have an answer of a token at least; nobody sees it
        params = msgspec.structs.replace(params, max_tokens=1)
    limit_s = _time_limit_s(body.t_max_predict_ms)
    id_ = f"native-{secrets.token_hex(16)}"
    answers = [
        replace(
            _answer(f"{id_}-{p * n + i}", prompt, choice_params(params, i), call=call, model=model, grammar=grammar),
            time_limit_s=limit_s,
        )
        for p, prompt in enumerate(prompts)
        for i in range(n)
    ]
    writer = CompletionWriter(model, prompts, wanted, n=n)
    return GenerationResponse(call, model, answers=answers, writer=writer, stream=bool(body.stream))


def _answer(
    request_id: str, prompt: Prompt, params: SamplingParams, *, call: Call, model: LoadedModel, grammar: str
) -> Answer:
    room = model.room_for_answer(prompt.token_ids, params.max_tokens, "prompt")
    own = msgspec.structs.replace(params, max_tokens=room)
    return new_answer(request_id, prompt.token_ids, own, call=call, model=model, grammar=grammar)


def _time_limit_s(milliseconds: float | None) -> float | None:
    """Return how long an answer may take from its first token; None for as long as it takes (0 or less)."""
    if milliseconds is None or milliseconds <= 0:
        return None
    if milliseconds > 1e12:
        message = f"t_max_predict_ms is {milliseconds:g}; expected at most 1e12"
        raise InvalidParameter(message, parameter="t_max_predict_ms")
    return milliseconds / 1e3
