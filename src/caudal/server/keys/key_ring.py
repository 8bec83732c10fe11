"""The keys as a running server knows them: in memory, by the hashes of their secrets, and never out of date.

`PRAGMA data_version` tells in microseconds whether anybody has written to the database since it was last asked, so
what another process changes holds for the next request. If the database cannot be read, the keys last read hold.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING

from caudal.errors import ConfigError
from caudal.server.keys.key import digest_of
from caudal.server.keys.key_store import connect, read_ring, revision_of

if TYPE_CHECKING:
    from pathlib import Path

    from caudal.server.keys.key import Key

log = logging.getLogger(__name__)


class KeyRing:
    """Finds keys by their secrets.

    Args:
        database: a KeyStore's.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, database: Path) -> None:
        self._failing = False
        self._data_version = -1
        self._revision = -1
        self._keys: dict[bytes, Key] = {}
        try:
            self._db = connect(database)
            self._db.execute("PRAGMA query_only = ON")
            self._read()
            self._db.execute("PRAGMA busy_timeout = 0")  # from now on it is the event loop that would wait
        except sqlite3.Error as error:
            message = f"cannot read the keys in {database}: {error}"
            raise ConfigError(message) from error

    def __len__(self) -> int:
        """Return how many keys there are, those that open nothing any more too."""
        return len(self._keys)

    def refresh(self) -> None:
        """Read the keys again if any has changed."""
        try:
            self._read()
        except sqlite3.Error as error:
            if not self._failing:
                log.error("the keys cannot be read again: %s; those read before still hold", error)  # noqa: TRY400
            self._failing = True

    def find(self, secret: str) -> Key | None:
        """Return the key of a secret.

        The time that this takes tells nothing of other secrets: what is compared are hashes, and nobody can choose
        a secret whose hash begins as another's does.
        """
        return self._keys.get(digest_of(secret))

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _read(self) -> None:
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return
        revision = revision_of(self._db)
        if revision != self._revision:  # usage is written to the same file, far more often
            self._keys = read_ring(self._db)
            self._revision = revision
        self._data_version = version
        self._failing = False
