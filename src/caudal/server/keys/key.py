"""An API key: what it may do, and the secret that stands for it.

A secret is `ck-ID-RANDOM`: the key's public id, and 32 random bytes in base64url. Only its SHA-256 is kept; the bytes
are random, so a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterable

INFERENCE, MODELS_READ, MODELS_WRITE, METRICS, ADMIN = "inference", "models:read", "models:write", "metrics", "admin"
SCOPES = (INFERENCE, MODELS_READ, MODELS_WRITE, METRICS, ADMIN)
LIMITS = ("requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day", "max_parallel")
SECRET = re.compile(r"ck-[a-z0-9]{8}-[A-Za-z0-9_-]{43}")
"""What a secret looks like, to keep it out of what is written down."""
REMOVED = "ck-[removed]"

_ID_LETTERS = string.ascii_lowercase + string.digits
_MAX_NAME_CHARS = 100
_MAX_ITEMS = 100
_MAX_LIMIT = 2**53
_MAX_PRIORITY = 1000


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. Limits of None do not limit.

    Attributes:
        id: eight letters and digits, public.
        name: for people.
        department: for reports.
        scopes: of SCOPES. inference includes models:read.
        models: patterns (`*`, `?`) of the names of the models that it may use.
        requests_per_minute, requests_per_day: requests that may begin; a day is a day of UTC.
        tokens_per_minute, tokens_per_day: of prompts and answers.
        max_parallel: requests at a time.
        priority: of its requests; smaller is more urgent.
        expires_at: Unix time in seconds from which on it is refused.
        revoked_at: when it was revoked.
        created_at: when it was made.
        last_used_at: about when it last opened the server; at most a second behind.
    """

    id: str
    name: str
    department: str = ""
    scopes: tuple[str, ...] = (INFERENCE,)
    models: tuple[str, ...] = ("*",)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_day: int | None = None
    max_parallel: int | None = None
    priority: int = 0
    expires_at: float | None = None
    revoked_at: float | None = None
    created_at: float = 0.0
    last_used_at: float | None = None

    @property
    def is_static(self) -> bool:
        """Whether it comes from the command line, not from the database."""
        return self.id.startswith("static-")

    def may(self, scope: str) -> bool:
        """Whether it has a scope."""
        return scope in self.scopes or (scope == MODELS_READ and INFERENCE in self.scopes)

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether it may use a model that has these names."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.models)

    def refusal(self, now: float) -> str | None:
        """Return why it opens nothing at a Unix time, or None."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return None


class KeyFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be chosen for a key, when it is made or later; what is not named stays as it is. See Key.

    Unknown names are refused: a misspelt limit must not make a key without one.

    Raises:
        InvalidParameter: a value outside its range; names the field.
    """

    name: str | UnsetType = UNSET
    department: str | UnsetType = UNSET
    scopes: tuple[str, ...] | UnsetType = UNSET
    models: tuple[str, ...] | UnsetType = UNSET
    requests_per_minute: int | UnsetType | None = UNSET
    tokens_per_minute: int | UnsetType | None = UNSET
    requests_per_day: int | UnsetType | None = UNSET
    tokens_per_day: int | UnsetType | None = UNSET
    max_parallel: int | UnsetType | None = UNSET
    priority: int | UnsetType = UNSET
    expires_at: float | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        """Check every value."""
        if self.name is not UNSET:
            _check_text("name", self.name, empty=False)
        if self.department is not UNSET:
            _check_text("department", self.department, empty=True)
        if self.scopes is not UNSET:
            unknown = sorted(set(self.scopes) - set(SCOPES))
            if unknown or not self.scopes:
                message = f"scopes is {list(self.scopes)}; expected one or more of {', '.join(SCOPES)}"
                raise InvalidParameter(message, parameter="scopes")
        if self.models is not UNSET:
            if not 1 <= len(self.models) <= _MAX_ITEMS:
                message = f"models has {len(self.models)} patterns; expected 1 to {_MAX_ITEMS}, such as '*'"
                raise InvalidParameter(message, parameter="models")
            for pattern in self.models:
                _check_text("models", pattern, empty=False)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in LIMITS:
            value = getattr(self, name)
            if isinstance(value, int) and not 1 <= value <= _MAX_LIMIT:
                message = f"{name} is {value}; expected a number from 1, or nothing for no limit"
                raise InvalidParameter(message, parameter=name)
        if isinstance(self.priority, int) and abs(self.priority) > _MAX_PRIORITY:
            message = f"priority is {self.priority}; expected a number from -{_MAX_PRIORITY} to {_MAX_PRIORITY}"
            raise InvalidParameter(message, parameter="priority")
        if isinstance(self.expires_at, float) and not 0 <= self.expires_at < 2**40:
            message = f"expires_at is {self.expires_at}; expected a Unix time in seconds"
            raise InvalidParameter(message, parameter="expires_at")

    def chosen(self) -> dict[str, object]:
        """Return what was named."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}


def _check_text(parameter: str, text: str, *, empty: bool) -> None:
    if len(text) > _MAX_NAME_CHARS or not text.isprintable() or not (text.strip() or empty):
        message = f"{parameter} is {text[:120]!r}; expected 1 to {_MAX_NAME_CHARS} printable characters"
        raise InvalidParameter(message, parameter=parameter)


def without_secrets(document: object) -> msgspec.Raw:
    """Return a document as JSON, with whatever looks like a secret taken out."""
    try:
        return msgspec.Raw(SECRET.sub(REMOVED, msgspec.json.encode(document).decode()).encode())
    except RecursionError:
        return msgspec.Raw(b'["nested too deeply to be written down"]')


def new_id() -> str:
    """Return a public id."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def new_secret(key_id: str) -> str:
    """Return a secret for a key."""
    return f"ck-{key_id}-{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> bytes:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
