"""Changes of keys that are made without a server, as lines of its audit log.

Those of the admin API are requests, which the server writes down. These are written whatever a server's own log is
set to: a process apart cannot know, and they are few.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import TYPE_CHECKING, Any

from caudal.server.audit.audit_files import append
from caudal.server.audit.audit_log import iso_time
from caudal.server.keys.key import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from caudal.server.keys.key import Key, KeyFields


def write_key_change(
    state_dir: Path, change: str, key: Key, fields: KeyFields | None = None, clock: Callable[[], float] = time.time
) -> None:
    """Write that the user of this process has changed a key; return when the disk has it.

    Args:
        state_dir: where the key and the log are.
        change: "create", "set", "rotate" or "revoke".
        key: as it is now.
        fields: what was chosen for it.
        clock: Unix time in seconds.

    Raises:
        OSError: the log cannot be written.
    """
    now = iso_time(clock())
    record: dict[str, Any] = {
        "time": now,
        "event": "key_change",
        "change": change,
        "key_id": key.id,
        "key_name": without_secrets(key.name),
        "fields": without_secrets({} if fields is None else fields.chosen()),
        "uid": os.getuid(),
        "user": _user_name(),
    }
    append(state_dir, now[:10], [record], durable=True)


def _user_name() -> str:
    """Return who runs this process, as the system knows it; the environment may say anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
