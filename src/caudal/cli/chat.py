"""The interactive chat of `caudal run MODEL`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import click
import msgspec

from caudal.cli.answer import AnswerStats, interrupt_flag, stream_answer
from caudal.errors import RequestError
from caudal.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caudal.llm import LLM, Chunk

PROMPT, CONTINUED = ">>> ", "... "
FENCE = '"""'
HELP = f"""\
/help                    this text
/clear                   forget the conversation
/system TEXT             set the system message and forget the conversation; without TEXT, remove it
/set NAME VALUE          set a sampling parameter, such as: /set temperature 0.2
/show                    the system message and the sampling parameters
/exit                    leave (so does Ctrl-D)
{FENCE}                      begins and ends a message of several lines
Ctrl-C                   stops the answer"""


class Chat:
    """A conversation at the terminal.

    Args:
        llm: the model. One without a chat template continues each message as it stands, and remembers nothing.
        params: sampling parameters; /set changes them.
        system: system message, if any.
        verbose: print the statistics of each answer.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, *, verbose: bool) -> None:
        self.llm = llm
        self.params = params
        self.system = system
        self.verbose = verbose
        self.turns: list[dict[str, str]] = []

    def run(self) -> None:
        """Read and answer until /exit or Ctrl-D."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - importing it gives input() editing and history
        if self.llm.tokenizer.chat_template is None:
            click.echo("this is a base model: it continues your text and remembers nothing", err=True)
        click.echo("/help lists the commands", err=True)
        while True:
            try:
                text = read_message()
            except KeyboardInterrupt:
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            if text.strip() in ("/exit", "/bye", "/quit"):
                return
            self.handle(text)

    def handle(self, text: str) -> None:
        """Carry out a command or answer a message. What is wrong with either is said, and the chat goes on."""
        if not text.strip():
            return
        try:
            if text.startswith("/"):
                self.obey(text)
            else:
                self.answer(text)
        except RequestError as error:
            click.echo(f"caudal: {error}", err=True)

    def answer(self, text: str) -> None:
        """Stream the answer to a message; a stopped answer stays in the conversation as far as it got."""
        stats = AnswerStats()
        with interrupt_flag() as interrupted:
            stream = self.stream(text)
            answer = stream_answer(stream, stats, lambda part: click.echo(part, nl=False), interrupted.is_set)
        click.echo()
        self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        if stats.finish_reason == "length":
            click.echo("(cut short: max_tokens or the context was reached)", err=True)
        if self.verbose:
            click.echo(stats.summary(), err=True)

    def stream(self, text: str) -> Iterator[Chunk]:
        """Begin the answer to a message."""
        if self.llm.tokenizer.chat_template is None:
            return self.llm.stream(text, self.params)
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self.llm.chat_stream([*system, *self.turns, {"role": "user", "content": text}], self.params)

    def obey(self, line: str) -> None:
        """Carry out a command."""
        name, _, rest = line.strip().partition(" ")
        if name == "/clear":
            self.turns.clear()
        elif name == "/system":
            self.system = rest.strip() or None
            self.turns.clear()
        elif name == "/set":
            self.params = changed_params(self.params, *rest.partition(" ")[::2])
        elif name == "/show":
            click.echo(f"system {self.system!r}")
            for field, value in msgspec.structs.asdict(self.params).items():
                click.echo(f"{field} {value!r}")
        else:
            if name not in ("/help", "/?"):
                click.echo(f"unknown command {name}", err=True)
            click.echo(HELP)


def read_message() -> str:
    """Read one message. Raises EOFError at its end and KeyboardInterrupt on Ctrl-C."""
    line = input(PROMPT)
    if not line.startswith(FENCE):
        return line
    text = line.removeprefix(FENCE)
    while not text.rstrip().endswith(FENCE):
        text += "\n" + input(CONTINUED)
    return text.rstrip().removesuffix(FENCE).strip("\n")


def changed_params(params: SamplingParams, name: str, value: str) -> SamplingParams:
    """Return `params` with one field set from text; "none" unsets it.

    Raises:
        RequestError: no such parameter, or a value that it does not take.
    """
    hints = get_type_hints(SamplingParams)
    settable = sorted(field for field, hint in hints.items() if _is_settable(hint))
    if name not in settable:
        message = f"/set knows no parameter {name!r}; known ones are {', '.join(settable)}"
        raise RequestError(message)
    try:
        parsed = _parse(hints[name], value.strip())
    except (ValueError, msgspec.ValidationError):
        kind = getattr(hints[name], "__name__", hints[name])
        message = f"/set {name}: {value.strip()!r} is no value for it; it takes {kind}"
        raise RequestError(message, parameter=name) from None
    return SamplingParams(**(msgspec.structs.asdict(params) | {name: parsed}))


def _is_settable(hint: Any) -> bool:
    """Whether a line of text can be a value: a number, yes or no, or a text; no lists and tables of numbers."""
    kinds = set(get_args(hint) or [hint])
    return str in kinds or (get_origin(hint) not in (dict, tuple) and bool({int, float, bool} & kinds))


def _parse(hint: Any, text: str) -> Any:
    if text.lower() in ("none", "") and type(None) in get_args(hint):
        return None
    if str in get_args(hint):
        return (text.encode("latin-1", "backslashreplace").decode("unicode_escape"),) if text else ()
    return msgspec.convert(text, hint, strict=False)
