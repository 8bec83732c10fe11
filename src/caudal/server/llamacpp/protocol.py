"""POST /completion and /infill: the fields of requests.

Source: llama.cpp, tools/server/README.md. null means absent, as there.
"""

from __future__ import annotations

from typing import Any

import msgspec


class NativeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both routes take. Fields about caches and slots (cache_prompt, id_slot, n_keep, ...) change no answer
    here, and are ignored like unknown ones.
    """  # fmt: skip # noqa: D205

    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    t_max_predict_ms: float | None = None
    n_cmpl: int | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    samplers: str | list[str] | None = None
    seed: int | None = None
    logit_bias: Any = None
    n_probs: int | None = None
    logprobs: int | bool | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    response_fields: list[str] | None = None
    # Known, and refused unless they are neutral.
    dynatemp_range: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    mirostat: int | None = None
    adaptive_target: float | None = None
    min_keep: int | None = None
    grammar: str | None = None
    grammar_lazy: bool | None = None
    json_schema: Any = None
    lora: list[Any] | None = None
    multimodal_data: list[Any] | None = None


class CompletionRequest(NativeRequest, frozen=True, kw_only=True):
    """POST /completion."""

    prompt: Any = None


class ExtraFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the model may look at while it fills in."""

    text: str
    filename: str | None = None


class InfillRequest(NativeRequest, frozen=True, kw_only=True):
    """POST /infill. `prompt` is text that already stands at the beginning of the gap."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None


NATIVE_ONLY = frozenset(
    {
        "n_predict",
        "n_probs",
        "n_cmpl",
        "n_keep",
        "n_indent",
        "id_slot",
        "cache_prompt",
        "samplers",
        "return_tokens",
        "return_progress",
        "response_fields",
        "t_max_predict_ms",
        "post_sampling_probs",
        "timings_per_token",
        "repeat_last_n",
        "dry_multiplier",
        "mirostat",
    }
)
"""Fields of llama-server's that OpenAI's and vLLM's completions do not have: with one of them, a body is meant so."""
