"""Options that several verbs share. Spelling follows vLLM; llama.cpp's short forms are accepted beside it.

Every sampling default is read from SamplingParams, so that there is one place to change it.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from caudal.config import KV_CACHE_DTYPES, EngineConfig
from caudal.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def default_of(struct: type[msgspec.Struct], field: str) -> Any:
    """Return the default of a field of a msgspec Struct."""
    return next(f.default for f in msgspec.structs.fields(struct) if f.name == field)


def option(struct: type[msgspec.Struct], field: str, *names: str, **settings: Any) -> Decorator:
    """Make an option that fills `field` of `struct`; its default, and so its help, come from there."""
    default = default_of(struct, field)
    none = settings.pop("none", False)
    shown = settings.get("is_flag") is None if default is not None else none
    return click.option(*names, field, default=default, show_default=shown, **settings)


def chain(*decorators: Decorator) -> Decorator:
    """Apply decorators so that help lists them in the order given."""
    return lambda function: functools.reduce(lambda f, decorate: decorate(f), reversed(decorators), function)


model_option: Decorator = click.option(
    "-m",
    "--model",
    "model_option",
    metavar="MODEL",
    expose_value=False,
    help="The model, instead of the first argument.",
)


class ModelFirst(click.Command):
    """A command whose first argument is MODEL, unless -m or --model names it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the value of -m/--model, when there is one, in front of the other arguments."""
        return super().parse_args(ctx, _model_first(args))


def _model_first(args: list[str]) -> list[str]:
    for index, arg in enumerate(args):
        if arg == "--":
            break
        if arg.startswith("--model="):
            return [arg.removeprefix("--model="), *args[:index], *args[index + 1 :]]
        if arg in ("-m", "--model") and index + 1 < len(args):
            return [args[index + 1], *args[:index], *args[index + 2 :]]
    return args


sampling_options = chain(
    option(SamplingParams, "temperature", "--temperature", "--temp", type=float, help="0 is greedy."),
    option(SamplingParams, "top_k", "--top-k", type=int, help="Keep the k likeliest tokens; 0 keeps all."),
    option(SamplingParams, "top_p", "--top-p", type=float, help="Keep the likeliest tokens up to this probability."),
    option(SamplingParams, "min_p", "--min-p", type=float,
           help="Drop tokens less likely than this times the likeliest."),
    option(SamplingParams, "repetition_penalty", "--repetition-penalty", "--repeat-penalty", type=float,
           help="Divide the logits of tokens seen before."),
    option(SamplingParams, "presence_penalty", "--presence-penalty", type=float, help="As OpenAI defines it."),
    option(SamplingParams, "frequency_penalty", "--frequency-penalty", type=float, help="As OpenAI defines it."),
    option(SamplingParams, "max_tokens", "--max-tokens", "-n", type=int, none="what the context holds",
           help="Longest answer."),
    option(SamplingParams, "seed", "--seed", "-s", type=int, none="random", help="Makes the answer reproducible."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text. May be repeated."),
    option(SamplingParams, "ignore_eos", "--ignore-eos", is_flag=True, help="Go on after the end-of-text token."),
)  # fmt: skip

engine_options = chain(
    option(EngineConfig, "max_model_len", "--max-model-len", "--ctx-size", "-c", type=int, none="the model's",
           help="Longest prompt plus answer, in tokens."),
    option(EngineConfig, "num_threads", "--threads", "-t", type=int, none="the cores this process may use",
           help="Threads of computation."),
    option(EngineConfig, "kv_cache_dtype", "--kv-cache-dtype", type=click.Choice(KV_CACHE_DTYPES),
           help="What the KV cache keeps: int8 takes 57 % of the memory of f16, which auto is."),
    option(EngineConfig, "exact", "--exact", is_flag=True,
           help="Keep activations in float32, and the KV cache if its type is auto: slower."),
    option(EngineConfig, "pack_cache", "--pack-cache", metavar="DIR",
           help="Keep weights there as the kernels read them, so that the next start is quick; auto is a folder in the "
           "user's cache. Takes as much disk as the model."),
)  # fmt: skip

speculation_option: Decorator = option(
    EngineConfig,
    "num_speculative_tokens",
    "--num-speculative-tokens",
    "--draft-max",
    type=int,
    help="Most tokens to guess and check in one step where an answer repeats what came before; 0 is off.",
)

json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Build SamplingParams from the values of `sampling_options`, taking them out of `values`.

    Raises:
        InvalidParameter: a value is outside its range.
    """
    names = {field.name for field in msgspec.structs.fields(SamplingParams)}
    taken = {name: values.pop(name) for name in list(values) if name in names}
    taken["stop"] = tuple(taken.get("stop", ()))
    return SamplingParams(**taken)


def is_a_terminal(stream: Any) -> bool:
    """Whether a person reads this stream. CI logs and dumb terminals count as files."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
