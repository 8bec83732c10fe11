"""`caudal audit …`: check that nobody changed the audit log, and take records out of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import msgspec

from caudal.cli.main import DONE, FAILED
from caudal.cli.options import json_option
from caudal.cli.state_options import chosen_state_dir, state_dir_option
from caudal.errors import ConfigError
from caudal.server.audit.audit_files import files_of, lines_of, verify_log

if TYPE_CHECKING:
    from pathlib import Path


@click.group()
def command() -> None:
    """Verify and export the audit log."""


@command.command()
@state_dir_option
@json_option
def verify(*, state_dir: Path | None, as_json: bool) -> int:
    """Check the chain of hashes, and say where it breaks first. Exit status 1 if it does."""
    directory = chosen_state_dir(state_dir)
    try:
        verdict = verify_log(directory)
    except OSError as error:
        raise _unreadable(directory, error) from error
    broken = verdict.broken
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(verdict), indent=2))
    elif broken is not None:
        click.echo(f"broken at {broken.file} line {broken.line}: {broken.reason}")
    else:
        begun = f", beginning with seq {verdict.first_seq}: older files are gone" if verdict.first_seq > 1 else ""
        click.echo(f"whole: {verdict.num_lines} lines{begun}")
    return DONE if broken is None else FAILED


@command.command()
@click.option("--from", "first", metavar="DAY", default="0000-00-00", help="First day, YYYY-MM-DD (UTC).")
@click.option("--to", "last", metavar="DAY", default="9999-12-31", help="Last day.")
@state_dir_option
def export(*, first: str, last: str, state_dir: Path | None) -> None:
    """Write the records of some days as JSON lines, as they are in the log."""
    directory = chosen_state_dir(state_dir)
    try:
        chosen = [path for path in files_of(directory) if first <= path.name[6:16] <= last]
        for _, _, line in lines_of(chosen):
            click.echo(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(directory: Path, error: OSError) -> ConfigError:
    where = f" ({error.filename})" if error.filename else ""
    return ConfigError(f"cannot read the audit log in {directory}: {error.strerror or error}{where}")
