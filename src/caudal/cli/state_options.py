"""Options about the state directory, where keys, usage and the audit log are kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caudal.cli.options import chain
from caudal.errors import ConfigError
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.state_directory import DATABASE, default_state_dir
from caudal.server.settings import ServerSettings

if TYPE_CHECKING:
    from caudal.cli.options import Decorator

log = logging.getLogger(__name__)

state_dir_option: Decorator = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="$XDG_STATE_HOME/caudal or ~/.local/state/caudal",
    help="Where keys, usage and the audit log are kept.",
)

state_options = chain(
    state_dir_option,
    click.option("--audit-log", type=click.Choice(("off", "metadata", "full")),
                 show_default="metadata when there are keys, else off",
                 help="Write down who asked for what; full adds prompts and answers."),
    click.option("--audit-retention-days", type=click.IntRange(1), default=ServerSettings.audit_retention_days,
                 show_default=True, help="Days that the audit log is kept."),
    click.option("--audit-strict", is_flag=True,
                 help="Answer nothing while the audit log cannot be written, and wait for the disk."),
)  # fmt: skip


def chosen_state_dir(given: Path | None) -> Path:
    """Return the directory that was given, or the default."""
    return given or default_state_dir()


def state_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `state_options` out of `values` and return them as fields of ServerSettings.

    The default directory is done without if it cannot be made and nobody asked for it: there are no keys in it.

    Raises:
        ConfigError: the directory was asked for, or has keys, and cannot be used.
    """
    given = values.pop("state_dir")
    taken = {name: values.pop(name) for name in ("audit_log", "audit_retention_days", "audit_strict")}
    directory = chosen_state_dir(given)
    try:
        KeyStore(directory)
    except ConfigError as error:
        if given is not None or taken["audit_log"] in ("metadata", "full") or _may_have_keys(directory):
            raise
        log.warning("%s; this server keeps no usage and knows no keys but those of --api-key", error)
        return {**taken, "state_dir": None}
    return {**taken, "state_dir": directory}


def _may_have_keys(directory: Path) -> bool:
    try:
        return (directory / DATABASE).exists()
    except OSError:
        return True
