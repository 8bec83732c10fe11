"""Typed reads of a checkpoint's metadata."""

from __future__ import annotations

import builtins
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from caudal.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

T = TypeVar("T")
V = TypeVar("V")


class Required(Enum):
    """The type of REQUIRED, which stands for a default where there is none."""

    REQUIRED = 0


REQUIRED: Final = Required.REQUIRED


class MetadataReader:
    """Reads keys under a prefix, and checks their types.

    Without a default a key must exist; None is a default like any other. A key that exists must have the right type,
    default or not. Every method raises CheckpointError naming the key, the type expected and what was found.

    Args:
        metadata: key -> value, as GGUFFile.metadata.
        prefix: put before every key with a dot, the architecture's name for instance; "" for none.
        path: the file, for errors.
    """

    def __init__(
        self,
        metadata: Mapping[builtins.str, Any],
        prefix: builtins.str = "",
        *,
        path: Path | builtins.str | None = None,
    ) -> None:
        self._metadata = metadata
        self._prefix = f"{prefix}." if prefix else ""
        self._path = path

    def has(self, key: builtins.str) -> builtins.bool:
        """Tell whether the key exists."""
        return self._prefix + key in self._metadata

    def int(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.int | T:
        """Return a whole number. A bool is none."""
        return self._one(key, default, builtins.int, "a whole number")

    def float(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.float | T:
        """Return a number; a whole one is widened."""
        if type(self._metadata.get(self._prefix + key)) is builtins.int:
            return builtins.float(self._metadata[self._prefix + key])
        return self._one(key, default, builtins.float, "a number")

    def bool(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.bool | T:
        """Return a truth value. A number is none."""
        return self._one(key, default, builtins.bool, "a bool")

    def str(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.str | T:
        """Return a string."""
        return self._one(key, default, builtins.str, "a string")

    def ints(
        self, key: builtins.str, length: builtins.int | None, default: T | Required = REQUIRED
    ) -> tuple[builtins.int, ...] | T:
        """Return `length` whole numbers, from an array of that length or from one number that stands for all.

        With length None return an array of any length.
        """
        return self._many(key, length, default, builtins.int)

    def bools(
        self, key: builtins.str, length: builtins.int | None, default: T | Required = REQUIRED
    ) -> tuple[builtins.bool, ...] | T:
        """Return truth values, as `ints` does."""
        return self._many(key, length, default, builtins.bool)

    def floats(
        self, key: builtins.str, length: builtins.int | None, default: T | Required = REQUIRED
    ) -> tuple[builtins.float, ...] | T:
        """Return float numbers, as `ints` does."""
        return self._many(key, length, default, builtins.float)

    def strs(
        self, key: builtins.str, length: builtins.int | None = None, default: T | Required = REQUIRED
    ) -> tuple[builtins.str, ...] | T:
        """Return strings, as `ints` does."""
        return self._many(key, length, default, builtins.str)

    def _missing(self, key: builtins.str, default: T | Required) -> T:
        """Return the default of a key that does not exist, if it has one."""
        if isinstance(default, Required):
            fact = f"the metadata key {self._prefix + key!r} is missing; the model cannot be read without it"
            raise CheckpointError(fact, path=self._path)
        return default

    def _one(self, key: builtins.str, default: T | Required, kind: type[V], what: builtins.str) -> V | T:
        if not self.has(key):
            return self._missing(key, default)
        value = self._metadata[self._prefix + key]
        # Not isinstance: a bool is an int.
        if type(value) is not kind:
            raise self._wrong(key, what, value)
        return value

    def _many(
        self, key: builtins.str, length: builtins.int | None, default: T | Required, kind: type[V]
    ) -> tuple[V, ...] | T:
        if not self.has(key):
            return self._missing(key, default)
        value = self._metadata[self._prefix + key]
        items = value if isinstance(value, list) else [value]
        if all(type(item) is kind for item in items):
            if isinstance(value, list) and length in {None, len(value)}:
                return tuple(items)
            if not isinstance(value, list) and length is not None:
                return tuple(items * length)
        any_length = f"a list of {kind.__name__}"
        raise self._wrong(key, any_length if length is None else f"{length} of {kind.__name__}, or one for all", value)

    def _wrong(self, key: builtins.str, expected: builtins.str, value: Any) -> CheckpointError:
        """Make the error about a value that exists."""
        shown = repr(value[:4])[:-1] + ", ...]" if isinstance(value, list) and len(value) > 4 else repr(value)
        many = f" of {len(value)}" if isinstance(value, list) else ""
        fact = f"the metadata key {self._prefix + key!r} is a {type(value).__name__}{many}: {shown[:100]}"
        return CheckpointError(f"{fact}; expected {expected}", path=self._path)
