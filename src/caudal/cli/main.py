"""`caudal VERB …`: finds the verb, loads its file, and turns what goes wrong into one line and an exit status.

Exit status: 0 done, 1 it could not be done, 2 it was asked for wrongly, 130 interrupted.
Results go to stdout; progress, statistics and errors to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple

import click

from caudal.errors import CaudalError, ConfigError, InvalidParameter

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


class Verb(NamedTuple):
    """Where a verb's command lives, and its line in `caudal --help`, so that help loads no verb."""

    module: str
    summary: str


VERBS = {
    "run": Verb("caudal.cli.run", "Answer a prompt, or chat when there is none."),
    "serve": Verb("caudal.cli.serve", "Serve models over the OpenAI API."),
    "ps": Verb("caudal.cli.ps", "List the models that a running server has in memory."),
    "stop": Verb("caudal.cli.stop", "Unload a model of a running server."),
    "pull": Verb("caudal.cli.pull", "Download a model."),
    "launch": Verb("caudal.cli.launch", "Show what an agent (claude, codex, ...) needs, or start it."),
    "bench": Verb("caudal.cli.bench", "Measure prompt and generation speed."),
    "show": Verb("caudal.cli.show", "Describe a model file."),
    "keys": Verb("caudal.cli.keys", "Make, change and revoke API keys, and show what they used."),
    "audit": Verb("caudal.cli.audit", "Verify and export the audit log."),
    "list": Verb("caudal.cli.list_models", "List the models on this disk."),
    "rm": Verb("caudal.cli.remove", "Delete a downloaded model."),
    "version": Verb("caudal.cli.version", "Print the version."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and not to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the verbs in the order of their table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the same
        """Import a verb's file and return its `command`; None when there is no such verb."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command: click.Command = importlib.import_module(verb.module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; a slip of the pen is told the verb that it is nearest to."""
        if args[0] not in VERBS:
            from difflib import get_close_matches  # noqa: PLC0415 - only for those who slip

            if near := get_close_matches(args[0], VERBS, 1):
                message = f"there is no verb {args[0]!r}; the nearest is {near[0]!r}"
                raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the same
        """Write the table of verbs from what is known without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
def cli() -> None:
    """Run open-weight language models on this machine.

    MODEL is a GGUF file, the name of an installed demo model (smollm2), or a file in the Hugging Face cache.
    `caudal VERB --help` tells a verb's options.
    """


def complain(message: str) -> None:
    """Write one line on stderr."""
    sys.stderr.write(f"caudal: {' '.join(message.split())}\n")


def _message_of(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "caudal"
        return f"{error.format_message().rstrip('.')}; see `{where} --help`"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _forget_stdout() -> None:
    """Let the interpreter's last flush go nowhere: the reader of our output has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status."""
    try:
        status = cli.main(arguments, prog_name="caudal", standalone_mode=False)
        sys.stdout.flush()
    except (click.ClickException, CaudalError) as error:
        complain(_message_of(error))
        return MISUSED if isinstance(error, click.UsageError | ConfigError | InvalidParameter) else FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # click meets a broken pipe first and exits; nothing else here exits
        _forget_stdout()
        return DONE
    return status if isinstance(status, int) else DONE


def main() -> None:
    """Entry point of the `caudal` program."""
    sys.exit(run(sys.argv[1:] or ["--help"]))


if __name__ == "__main__":
    main()
