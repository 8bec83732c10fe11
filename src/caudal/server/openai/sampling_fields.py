"""The request fields that chat and completions share: OpenAI's, vLLM's extensions under vLLM's names, and llama.cpp's.

A known field that would change the answer's meaning and is not supported is refused by name; a field that nobody
here knows is ignored, because clients send many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import SamplingParams
from caudal.server.openai.output_fields import OutputFields
from caudal.server.penalties import penalties_of

if TYPE_CHECKING:
    from caudal.server.tokenizer_port import ServedTokenizer

MAX_CACHE_SALT_CHARS = 128
MAX_STOP_TOKEN_IDS = 1024
_SEEDS = 2**64
_PASSED_ON = (
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "min_tokens",
    "ignore_eos",
    "prompt_logprobs",
    "skip_special_tokens",
)


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_options`: ask for usage in the last chunk, or in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(OutputFields, frozen=True, kw_only=True):
    """Fields of both endpoints. None, or null in the JSON, means the default of SamplingParams."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Known, and refused unless they ask for nothing.
    allowed_token_ids: Any = None
    bad_words: Any = None
    best_of: Any = None
    dry_multiplier: Any = None
    dynatemp_range: Any = None
    logits_processors: Any = None
    mirostat: Any = None
    prompt_embeds: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    top_n_sigma: float | None = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    xtc_probability: Any = None


REFUSED = (
    "allowed_token_ids",
    "bad_words",
    "dry_multiplier",
    "dynatemp_range",
    "logits_processors",
    "mirostat",
    "prompt_embeds",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "truncate_prompt_tokens",
    "use_beam_search",
    "xtc_probability",
)


def refuse_unsupported(fields: SamplingFields, names: tuple[str, ...] = ()) -> None:
    """Raise UnsupportedParameter for a field that is set and not supported.

    Args:
        fields: the request.
        names: the endpoint's own such fields, beside those of both endpoints.
    """
    for name in (*REFUSED, *names):
        if getattr(fields, name) not in (None, False, "", [], {}):  # 0 is False
            raise UnsupportedParameter(_not_supported(name), parameter=name)
    if fields.top_n_sigma is not None and fields.top_n_sigma > 0:  # negative is llama.cpp's way to say "off"
        raise UnsupportedParameter(_not_supported("top_n_sigma"), parameter="top_n_sigma")
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        raise UnsupportedParameter(_not_supported("best_of"), parameter="best_of")


def _not_supported(name: str) -> str:
    return f"{name} is not supported by this server; leave it out"


def sampling_params(
    fields: SamplingFields, tokenizer: ServedTokenizer, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """Return the request's SamplingParams, without the prompt-dependent limit.

    Raises:
        InvalidParameter: a value outside its range; names the field.
    """
    given: dict[str, Any] = {name: getattr(fields, name) for name in _PASSED_ON if getattr(fields, name) is not None}
    given.update(_penalties(fields))
    if fields.stop is not None:
        given["stop"] = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    if fields.stop_token_ids is not None:
        check_token_ids(fields.stop_token_ids, tokenizer, "stop_token_ids")
        if len(fields.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            message = f"stop_token_ids has {len(fields.stop_token_ids)} ids; expected at most {MAX_STOP_TOKEN_IDS}"
            raise InvalidParameter(message, parameter="stop_token_ids")
        given["stop_token_ids"] = tuple(fields.stop_token_ids)
    if fields.logit_bias is not None:
        check_token_ids(list(fields.logit_bias), tokenizer, "logit_bias")
        given["logit_bias"] = fields.logit_bias
    if fields.seed is not None and fields.seed != -1:  # -1 is llama.cpp's and vLLM's way to say "any"
        given["seed"] = fields.seed
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **given)


def _penalties(fields: SamplingFields) -> dict[str, float]:
    """Return the penalties that are given; repeat_penalty is llama.cpp's name of repetition_penalty."""
    repeat = fields.repeat_penalty if fields.repetition_penalty is None else fields.repetition_penalty
    presence, frequency, last_n = fields.presence_penalty, fields.frequency_penalty, fields.repeat_last_n
    if last_n is not None and not penalties_of(repeat=repeat, presence=presence, frequency=frequency, last_n=last_n):
        return {}
    given = {"repetition_penalty": repeat, "presence_penalty": presence, "frequency_penalty": frequency}
    return {name: value for name, value in given.items() if value is not None}


def asked_tokens(fields: SamplingFields, names: tuple[str, ...], default: int | None = None) -> int | None:
    """Return how long an answer may be, in tokens; None for as long as the context allows.

    Args:
        fields: the request.
        names: of the fields that say so; the first that is given counts. Negative is llama.cpp's way to say "any".
        default: where none is given.

    Raises:
        InvalidParameter: it is 0; names the field.
    """
    name = next((each for each in names if getattr(fields, each) is not None), None)
    if name is None:
        return default
    asked: int = getattr(fields, name)
    if asked == 0:
        message = f"{name} is 0; expected at least 1, or -1 for as many as the context allows"
        raise InvalidParameter(message, parameter=name)
    return asked if asked > 0 else None


def choice_params(params: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of one of the n answers: a seed of its own, n of 1."""
    seed = params.seed
    if seed is not None and index:
        seed = (seed + index) % _SEEDS
    return msgspec.structs.replace(params, n=1, seed=seed)


def check_token_ids(token_ids: list[int], tokenizer: ServedTokenizer, parameter: str) -> None:
    """Raise InvalidParameter if an id is outside the vocabulary."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < tokenizer.vocab_size):
        wrong = next(i for i in token_ids if not 0 <= i < tokenizer.vocab_size)
        message = f"{parameter} has token id {wrong}; expected ids from 0 to {tokenizer.vocab_size - 1}"
        raise InvalidParameter(message, parameter=parameter)


def check_request_fields(fields: SamplingFields) -> None:
    """Raise InvalidParameter for values that the engine's message or the answer cannot carry."""
    if fields.stream and fields.prompt_logprobs is not None:
        message = "prompt_logprobs are not available in a stream; send stream false, or leave them out"
        raise InvalidParameter(message, parameter="prompt_logprobs")
    if fields.priority is not None and not -(2**31) <= fields.priority < 2**31:
        message = f"priority is {fields.priority}; expected a number from -2^31 to 2^31 - 1"
        raise InvalidParameter(message, parameter="priority")
    if fields.cache_salt is not None and len(fields.cache_salt) > MAX_CACHE_SALT_CHARS:
        message = f"cache_salt has {len(fields.cache_salt)} characters; expected at most {MAX_CACHE_SALT_CHARS}"
        raise InvalidParameter(message, parameter="cache_salt")
