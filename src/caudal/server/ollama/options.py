"""From Ollama's options to SamplingParams.

Left out, an option has the value that Ollama documents today: temperature 0.8, top_k 40, top_p 0.9, min_p 0, no
penalties. Values outside a range are moved into it, as Ollama does; what cannot be honoured is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.sampling_params import SamplingParams
from caudal.server.ollama.protocol import Options
from caudal.server.penalties import penalties_of, within

if TYPE_CHECKING:
    from caudal.server.ollama.protocol import AnswerRequest

MAX_TOP_LOGPROBS = 20
_MAX_TOKENS = 2**31 - 1
_SMALLEST = 1e-9


def asked_tokens(body: AnswerRequest) -> int | None:
    """Return how long the answer may be; None for as long as the context allows (num_predict -1, -2 or 0)."""
    asked = None if body.options is None else body.options.num_predict
    return min(asked, _MAX_TOKENS) if asked is not None and asked > 0 else None


def num_logprobs(body: AnswerRequest) -> int | None:
    """Return how many log-probabilities each token is to have; None for none."""
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        message = f"top_logprobs is {top}; expected a number from 0 to {MAX_TOP_LOGPROBS}"
        raise InvalidParameter(message, parameter="top_logprobs")
    return top if body.logprobs or top else None


def sampling_params(body: AnswerRequest, *, max_tokens: int | None) -> SamplingParams:
    """Return the request's SamplingParams.

    Raises:
        RequestError: an option that is not supported, or that makes no sense.
    """
    options = body.options or Options()
    _refuse(options)
    stop = options.stop or ()
    return SamplingParams(
        temperature=within(options.temperature, 0.8, 0.0, 100.0),
        top_k=max(0, 40 if options.top_k is None else min(options.top_k, 2**31 - 1)),
        top_p=within(options.top_p, 0.9, _SMALLEST, 1.0),
        min_p=within(options.min_p, 0.0, 0.0, 1.0),
        typical_p=within(options.typical_p, 1.0, _SMALLEST, 1.0),
        seed=_seed(options.seed),
        stop=(stop,) if isinstance(stop, str) else tuple(text for text in stop if text),
        max_tokens=max_tokens,
        logprobs=num_logprobs(body),
        **penalties_of(
            repeat=options.repeat_penalty,
            presence=options.presence_penalty,
            frequency=options.frequency_penalty,
            last_n=options.repeat_last_n,
        ),
    )


def _refuse(options: Options) -> None:
    if options.mirostat:
        message = f"mirostat is {options.mirostat}, and it is not supported; leave it out"
        raise UnsupportedParameter(message, parameter="mirostat")
    if options.tfs_z is not None and options.tfs_z != 1.0:
        message = f"tfs_z is {options.tfs_z}, and it is not supported; leave it out"
        raise UnsupportedParameter(message, parameter="tfs_z")


def _seed(seed: int | None) -> int | None:
    return None if seed is None or seed < 0 else seed % 2**64
