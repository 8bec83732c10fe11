"""Keys in SQLite: made, listed, changed, revoked. Every call is a transaction on a connection of its own.

Used by the command line, by the admin API (in threads), and read by the KeyRing of a running server.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import CaudalError, ConfigError, InvalidParameter
from caudal.server.keys.key import Key, KeyFields, digest_of, new_id, new_secret
from caudal.server.keys.state_directory import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VERSION = 1
SCHEMA = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, name TEXT NOT NULL, department TEXT NOT NULL,
    scopes TEXT NOT NULL, models TEXT NOT NULL,
    requests_per_minute INTEGER, tokens_per_minute INTEGER, requests_per_day INTEGER, tokens_per_day INTEGER,
    max_parallel INTEGER, priority INTEGER NOT NULL, expires_at REAL, revoked_at REAL, created_at REAL NOT NULL);
CREATE TABLE key_use (key_id TEXT PRIMARY KEY, last_used_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE usage (
    day TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL, errors INTEGER NOT NULL, rate_limited INTEGER NOT NULL,
    PRIMARY KEY (day, key_id, model)) WITHOUT ROWID;
CREATE TABLE revision (number INTEGER NOT NULL);
INSERT INTO revision VALUES (0);
"""
_LISTS = ("scopes", "models")
_COLUMNS = tuple(name for name in Key.__struct_fields__ if name != "last_used_at")
_SELECT = f"SELECT {', '.join(_COLUMNS)}, last_used_at FROM keys LEFT JOIN key_use ON key_id = id"  # noqa: S608 - ours


class UnknownKey(CaudalError):
    """No key has this id or name."""


class CreatedKey(msgspec.Struct, frozen=True):
    """A key with its secret, which nobody can read again."""

    key: Key
    secret: str


def connect(path: Path, *, timeout_s: float = 5.0) -> sqlite3.Connection:
    """Open the database, in autocommit mode, for use in any thread (by one at a time)."""
    db = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    return db


class KeyStore:
    """The keys of a state directory, which is made if there is none.

    Args:
        state_dir: where caudal.db is.
        clock: Unix time in seconds.

    Raises:
        ConfigError: the directory or the database cannot be used.
    """

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = prepare(state_dir)
        self._clock = clock
        with self.transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                message = f"{self.path} is of a newer Caudal (version {version}, known is {VERSION}); use that one"
                raise ConfigError(message)
            if version == 0:
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a transaction that takes effect as a whole or not at all.

        Raises:
            ConfigError: the database cannot be read or written.
        """
        try:
            db = connect(self.path)
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            finally:
                db.close()  # rolls back what was not committed
        except sqlite3.Error as error:
            message = f"cannot use {self.path}: {error}"
            raise ConfigError(message) from error

    def create(self, fields: KeyFields) -> CreatedKey:
        """Make a key. A name is required."""
        chosen = fields.chosen()
        if "name" not in chosen:
            message = "the key has no name; expected one, for people to know it by"
            raise InvalidParameter(message, parameter="name")
        key = msgspec.convert({"id": new_id(), "created_at": self._clock(), **chosen}, Key)
        secret = new_secret(key.id)
        row = {"digest": digest_of(secret), **_row_of(key)}
        with self.transaction() as db:
            marks = ", ".join(f":{name}" for name in row)
            db.execute(f"INSERT INTO keys ({', '.join(row)}) VALUES ({marks})", row)  # noqa: S608 - our own names
            _note_change(db)
        return CreatedKey(key, secret)

    def list(self) -> list[Key]:
        """Return every key, revoked ones too, oldest first."""
        with self.transaction() as db:
            return [_key_of(row) for row in db.execute(f"{_SELECT} ORDER BY created_at, id")]

    def find(self, id_or_name: str) -> Key:
        """Return the key with this id, or the only one with this name.

        Raises:
            UnknownKey: there is none.
            InvalidParameter: several have the name.
        """
        with self.transaction() as db:
            return _find(db, id_or_name)

    def change(self, id_or_name: str, fields: KeyFields) -> Key:
        """Change what is named. Raises as find does."""
        return self._update(id_or_name, _plain(fields.chosen()))

    def revoke(self, id_or_name: str) -> Key:
        """Make a key open nothing from now on, for ever. Raises as find does."""
        return self._update(id_or_name, {"revoked_at": self._clock()}, unless="revoked_at IS NOT NULL")

    def rotate(self, id_or_name: str) -> CreatedKey:
        """Give a key a new secret; the old one opens nothing from now on. Raises as find does."""
        with self.transaction() as db:
            key = _find(db, id_or_name)
            if key.revoked_at is not None:
                message = f"the key {key.id} ({key.name}) is revoked; create a new one"
                raise InvalidParameter(message, parameter="key")
            secret = new_secret(key.id)
            db.execute("UPDATE keys SET digest = ? WHERE id = ?", (digest_of(secret), key.id))
            _note_change(db)
        return CreatedKey(key, secret)

    def _update(self, id_or_name: str, values: dict[str, object], unless: str = "0") -> Key:
        with self.transaction() as db:
            key = _find(db, id_or_name)
            if values:
                names = ", ".join(f"{name} = :{name}" for name in values)
                db.execute(
                    f"UPDATE keys SET {names} WHERE id = :key_id AND NOT ({unless})",  # noqa: S608 - our own names
                    {**values, "key_id": key.id},
                )
                _note_change(db)
            return _find(db, key.id)


def read_ring(db: sqlite3.Connection) -> dict[bytes, Key]:
    """Return every key by the digest of its secret."""
    rows = db.execute(_SELECT.replace("SELECT", "SELECT digest,", 1))
    return {digest: _key_of(row) for digest, *row in rows}


def revision_of(db: sqlite3.Connection) -> int:
    """Return a number that every change of a key makes larger."""
    (number,) = db.execute("SELECT number FROM revision").fetchone()
    return int(number)


def _note_change(db: sqlite3.Connection) -> None:
    db.execute("UPDATE revision SET number = number + 1")


def _find(db: sqlite3.Connection, id_or_name: str) -> Key:
    rows = db.execute(f"{_SELECT} WHERE id = ?", (id_or_name,)).fetchall()
    rows = rows or db.execute(f"{_SELECT} WHERE name = ?", (id_or_name,)).fetchall()
    if not rows:
        message = f"no key has the id or the name {id_or_name!r}; see `caudal keys list`"
        raise UnknownKey(message)
    if len(rows) > 1:
        ids = ", ".join(row[0] for row in rows)
        message = f"{len(rows)} keys have the name {id_or_name!r}; expected the id of one: {ids}"
        raise InvalidParameter(message, parameter="key")
    return _key_of(rows[0])


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if name in _LISTS else value for name, value in values.items()}


def _row_of(key: Key) -> dict[str, Any]:
    return _plain({name: getattr(key, name) for name in _COLUMNS})


def _key_of(row: Any) -> Key:
    values = dict(zip((*_COLUMNS, "last_used_at"), row, strict=True))
    return msgspec.convert(
        {name: json.loads(value) if name in _LISTS else value for name, value in values.items()}, Key
    )
