"""How the next token is chosen. Every sampling default of Caudal lives in this one class."""

from __future__ import annotations

import math

import msgspec

from caudal.errors import InvalidParameter

MAX_LOGPROBS = 100
MAX_STOP_STRINGS = 64
MAX_N = 128
MAX_LOGIT_BIAS = 1e9


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable; validated when constructed.

    Attributes:
        n: how many independent answers to one prompt.
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 (or -1) keeps all.
        top_p: keep the smallest set whose probability reaches p.
        min_p: drop tokens less likely than min_p times the likeliest.
        typical_p: locally typical sampling (Meister et al. 2022); 1 is off.
        repetition_penalty: divides positive logits of tokens seen in prompt or answer (CTRL, Keskar et al. 2019).
        presence_penalty, frequency_penalty: subtracted for tokens of the answer, as OpenAI defines them.
        logit_bias: token id -> number added to its logit, from -1e9 to 1e9; -inf bans the token.
        seed: makes the answer reproducible; None draws one per request.
        stop: strings that end the answer; they are not part of it.
        stop_token_ids: token ids that end the answer, beside the model's own.
        min_tokens: no end-of-text, stop string or stop token before this many tokens.
        max_tokens: at most this many tokens; None means as many as the context holds.
        ignore_eos: go on after the model's end-of-text tokens.
        logprobs: return the log-probability of each token and of this many alternatives; None is off.
        prompt_logprobs: the same for the prompt's tokens.
        skip_special_tokens: leave control tokens out of the text.
    """

    n: int = 1
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.05
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Raise InvalidParameter, naming the parameter, if a value is outside its range."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                expected = f"from {low:g} to {high:g}"
                message = f"{name} is {value}; expected a number {expected}"
                raise InvalidParameter(message, parameter=name)
        if len(self.stop) > MAX_STOP_STRINGS or "" in self.stop:
            message = f"stop has {len(self.stop)} strings; expected at most {MAX_STOP_STRINGS}, none of them empty"
            raise InvalidParameter(message, parameter="stop")
        for token_id, bias in self.logit_bias.items():
            if not (abs(bias) <= MAX_LOGIT_BIAS or bias == -math.inf):
                message = f"logit_bias of token {token_id} is {bias}; expected a number from -1e9 to 1e9"
                raise InvalidParameter(message, parameter="logit_bias")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            message = f"min_tokens is {self.min_tokens}; expected at most max_tokens ({self.max_tokens})"
            raise InvalidParameter(message, parameter="min_tokens")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("n", 1, MAX_N),
    ("temperature", 0.0, 100.0),
    ("top_k", -1, 2**31 - 1),
    ("top_p", 1e-9, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 1e-9, 1.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("seed", -(2**63), 2**64 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("max_tokens", 1, 2**31 - 1),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)
