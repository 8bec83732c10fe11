"""`caudal run MODEL [PROMPT]`: one answer on stdout, or a chat at the terminal."""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Any

import click

from caudal.cli.answer import AnswerStats, stream_answer
from caudal.cli.options import (
    ModelFirst,
    engine_options,
    is_a_terminal,
    model_option,
    sampling_options,
    sampling_params,
    speculation_option,
)
from caudal.cli.progress import loading
from caudal.cli.template_option import template_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caudal.llm import LLM, Chunk
    from caudal.sampling_params import SamplingParams


STDIN_PATIENCE_S = 1.0


def read_prompt(words: tuple[str, ...]) -> str | None:
    """Return the prompt: the words given, then what is piped in. None means that a person wants to chat."""
    given = " ".join(words)
    if sys.stdin is None or sys.stdin.isatty():
        return given or None
    if given:
        _say_if_stdin_is_silent()
    piped = sys.stdin.buffer.read().decode("utf-8", "replace").strip("\n")
    prompt = "\n\n".join(part for part in (given, piped) if part)
    if not prompt:
        message = "no prompt: stdin is not a terminal and holds nothing; give PROMPT or pipe text in"
        raise click.UsageError(message)
    return prompt


def _say_if_stdin_is_silent() -> None:
    """Tell why nothing happens when stdin is a pipe that nobody writes to."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], STDIN_PATIENCE_S)
    except (OSError, ValueError):  # not something that can be waited for
        return
    if not ready:
        click.echo("caudal: stdin is a pipe, waiting for its end; to leave it alone, add </dev/null", err=True)


def start_stream(llm: LLM, prompt: str, system: str | None, params: SamplingParams, *, raw: bool) -> Iterator[Chunk]:
    """Begin the answer: as a chat if the model has a template, else as the prompt's continuation."""
    if raw or llm.tokenizer.chat_template is None:
        text = prompt if system is None else f"{system}\n\n{prompt}"
        return llm.stream(text, params)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return llm.chat_stream([*messages, {"role": "user", "content": prompt}], params)


def one_shot(stream: Iterator[Chunk], *, verbose: bool) -> None:
    """Write one answer on stdout and, if asked, its statistics on stderr."""
    stats = AnswerStats()
    try:
        stream_answer(stream, stats, lambda text: click.echo(text, nl=False))
    finally:
        if stats.num_tokens:
            click.echo()
    if verbose:
        click.echo(stats.summary(), err=True)


@click.command(cls=ModelFirst)
@click.argument("model")
@click.argument("prompt", nargs=-1)
@model_option
@click.option("--system", metavar="TEXT", help="System message.")
@template_option("the model's")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it stands, without the chat template.")
@sampling_options
@engine_options
@speculation_option
@click.option(
    "--verbose/--quiet", default=None, help="Statistics on stderr.  [default: when stdout and stderr are a terminal]"
)
def command(
    *, model: str, prompt: tuple[str, ...], system: str | None, raw: bool, verbose: bool | None, **values: Any
) -> None:
    """Answer PROMPT, or chat when there is none.

    What is piped in follows PROMPT. The answer alone goes to stdout.
    """
    params = sampling_params(values)
    text = read_prompt(prompt)
    terminal = is_a_terminal(sys.stderr)
    with loading(model, show=terminal) as load:
        llm = load(values)
    with llm:
        if text is not None:
            show_stats = verbose if verbose is not None else terminal and is_a_terminal(sys.stdout)
            one_shot(start_stream(llm, text, system, params, raw=raw), verbose=show_stats)
            return
        from caudal.cli.chat import Chat  # noqa: PLC0415 - one answer needs no line editor

        Chat(llm, params, system, verbose=bool(verbose)).run()
