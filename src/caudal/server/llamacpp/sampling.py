"""From llama-server's sampling fields to SamplingParams, and back to the settings that answers report.

Left out, a field has llama-server's default. Values outside a range are moved into it, as there; samplers that are
not here are refused by name unless they are set to do nothing. Samplers run in one order, whatever `samplers` says;
those that it does not name do nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import MAX_LOGPROBS, SamplingParams
from caudal.server.openai.sampling_fields import check_token_ids
from caudal.server.penalties import penalties_of, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.llamacpp.protocol import NativeRequest
    from caudal.server.tokenizer_port import ServedTokenizer

DEFAULT_SEED = 2**32 - 1
"""How llama-server writes "any"."""

_MAX_TOKENS = 2**31 - 1
_SMALLEST = 1e-9
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
_NAMES = {*_LETTERS.values(), "typical_p", "top-k", "top-p", "min-p", "typ-p", "temp", "dist"}
SAMPLERS = ("penalties", "temperature", "top_k", "typ_p", "top_p", "min_p")
"""The order in which they run here."""


def sampling_params(fields: NativeRequest, tokenizer: ServedTokenizer, *, max_tokens: int | None) -> SamplingParams:
    """Return the request's SamplingParams.

    Raises:
        RequestError: a field that is not supported, or makes no sense.
    """
    _refuse(fields)
    active = _active(fields.samplers)
    stop = fields.stop or ()
    return SamplingParams(
        n=num_answers(fields),
        temperature=within(fields.temperature, 0.8, 0.0, 100.0) if "temperature" in active else 1.0,
        top_k=min(max(40 if fields.top_k is None else fields.top_k, 0), 2**31 - 1) if "top_k" in active else 0,
        top_p=within(fields.top_p, 0.95, _SMALLEST, 1.0) if "top_p" in active else 1.0,
        min_p=within(fields.min_p, 0.05, 0.0, 1.0) if "min_p" in active else 0.0,
        typical_p=within(fields.typical_p, 1.0, _SMALLEST, 1.0) if "typ_p" in active else 1.0,
        **(_penalties(fields) if "penalties" in active else {}),
        logit_bias=_logit_bias(fields.logit_bias, tokenizer),
        seed=None if fields.seed is None or fields.seed in (-1, DEFAULT_SEED) else fields.seed % 2**64,
        stop=(stop,) if isinstance(stop, str) else tuple(text for text in stop if text),
        max_tokens=max_tokens,
        ignore_eos=bool(fields.ignore_eos),
        logprobs=num_logprobs(fields),
    )


def asked_tokens(fields: NativeRequest) -> int | None:
    """Return how long the answer may be; 0 asks for none, None (-1, -2) for as many as the context allows."""
    given = (fields.n_predict, fields.max_tokens, fields.max_completion_tokens)
    asked = next((value for value in given if value is not None), -1)
    return None if asked < 0 else min(asked, _MAX_TOKENS)


def num_answers(fields: NativeRequest) -> int:
    """Return how many answers each prompt gets."""
    given = fields.n_cmpl if fields.n_cmpl is not None else fields.n
    if given is not None and given < 1:
        message = f"n_cmpl is {given}; expected at least 1"
        raise InvalidParameter(message, parameter="n_cmpl")
    return given or 1


def num_logprobs(fields: NativeRequest) -> int | None:
    """Return how many likeliest tokens are told of each place; None for none."""
    given = fields.n_probs if fields.n_probs is not None else fields.logprobs
    if not given:
        return None
    if not 0 < given <= MAX_LOGPROBS:
        message = f"n_probs is {given}; expected a number from 0 to {MAX_LOGPROBS}"
        raise InvalidParameter(message, parameter="n_probs")
    return int(given)


def _refuse(fields: NativeRequest) -> None:
    unsupported = {
        "dynatemp_range": (fields.dynatemp_range or 0.0) != 0.0,
        "top_n_sigma": (fields.top_n_sigma or -1.0) > 0.0,
        "xtc_probability": (fields.xtc_probability or 0.0) > 0.0,
        "dry_multiplier": (fields.dry_multiplier or 0.0) != 0.0,
        "mirostat": bool(fields.mirostat),
        "adaptive_target": fields.adaptive_target is not None and fields.adaptive_target >= 0.0,
        "min_keep": (fields.min_keep or 0) > 1,
        "post_sampling_probs": bool(fields.post_sampling_probs) and num_logprobs(fields) is not None,
        "lora": bool(fields.lora),
        "multimodal_data": bool(fields.multimodal_data),
    }
    for name, is_set in unsupported.items():
        if is_set:
            message = f"{name} is {str(getattr(fields, name))[:40]}, and it is not supported; leave it out"
            raise UnsupportedParameter(message, parameter=name)


def _active(samplers: str | list[str] | None) -> frozenset[str]:
    """Return the names of the samplers that are to have an effect."""
    if samplers is None:
        return frozenset(SAMPLERS)
    names = [_LETTERS.get(letter, letter) for letter in samplers] if isinstance(samplers, str) else samplers
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        message = f"samplers has {unknown[0][:40]!r}; expected some of {', '.join(sorted(_LETTERS.values()))}"
        raise InvalidParameter(message, parameter="samplers")
    plain = (name.replace("-", "_") for name in names)
    return frozenset({"typical_p": "typ_p", "temp": "temperature"}.get(name, name) for name in plain)


def _penalties(fields: NativeRequest) -> dict[str, Any]:
    return penalties_of(
        repeat=fields.repeat_penalty,
        presence=fields.presence_penalty,
        frequency=fields.frequency_penalty,
        last_n=fields.repeat_last_n,
    )


def _logit_bias(given: Any, tokenizer: ServedTokenizer) -> dict[int, float]:
    """Return token id -> bias from [[id or text, number or false], ...] or {"id": number or false}; false bans."""
    if given is None:
        return {}
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise _wrong_bias(given)
    bias: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _wrong_bias(pair)
        token, value = pair
        if value is not False and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _wrong_bias(pair)
        try:
            number = -math.inf if value is False else float(value)
        except OverflowError as error:
            raise _wrong_bias(pair) from error
        for token_id in _biased_ids(token, tokenizer, by_id=isinstance(given, dict)):
            bias[token_id] = number
    check_token_ids(list(bias), tokenizer, "logit_bias")
    return bias


def _biased_ids(token: Any, tokenizer: ServedTokenizer, *, by_id: bool) -> list[int]:
    if isinstance(token, int) and not isinstance(token, bool):
        return [token]
    if not isinstance(token, str):
        raise _wrong_bias(token)
    if by_id and token.isascii() and token.isdecimal() and len(token) < 20:
        return [int(token)]
    return tokenizer.encode(token, add_special_tokens=False)


def _wrong_bias(given: Any) -> InvalidParameter:
    message = f"logit_bias has {str(given)[:40]!r}; expected pairs of a token's id or a text, and a number or false"
    return InvalidParameter(message, parameter="logit_bias")


def settings_of(
    params: SamplingParams, asked: int | None, *, stream: bool, eos_token_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the `generation_settings` of an answer: what was asked for, in llama-server's names.

    With ignore_eos it shows the ends as banned, as llama-server does.
    """
    banned = dict.fromkeys(eos_token_ids if params.ignore_eos else (), -math.inf)
    n_predict = -1 if asked is None else asked
    return {
        "seed": DEFAULT_SEED if params.seed is None else params.seed,
        "temperature": params.temperature,
        "dynatemp_range": 0.0,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "xtc_probability": 0.0,
        "repeat_last_n": -1,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "stop": list(params.stop),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "ignore_eos": params.ignore_eos,
        "stream": stream,
        "logit_bias": [
            {"token": token_id, "bias": bias if math.isfinite(bias) else None}
            for token_id, bias in {**params.logit_bias, **banned}.items()
        ],
        "n_probs": params.logprobs or 0,
        "samplers": list(SAMPLERS),
        "lora": [],
    }
