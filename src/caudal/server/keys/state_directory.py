"""The directory in which a server keeps keys, usage and its audit log. Only its owner may read it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from caudal.errors import ConfigError

log = logging.getLogger(__name__)

DATABASE = "caudal.db"


def default_state_dir() -> Path:
    """Return $XDG_STATE_HOME/caudal, or ~/.local/state/caudal (XDG base directory specification)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "caudal"


def prepare(directory: Path) -> Path:
    """Make the directory, if there is none, and an empty database in it; return the database's path.

    Raises:
        ConfigError: it cannot be made or written, or others may write into it.
    """
    database = directory / DATABASE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o022:
            message = f"the state directory {directory} can be written by others; run chmod 700 {directory}"
            raise ConfigError(message)
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if database.stat().st_mode & 0o077:
            database.chmod(0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot use the state directory {directory}: {reason}; choose another with --state-dir"
        raise ConfigError(message) from error
    return database
