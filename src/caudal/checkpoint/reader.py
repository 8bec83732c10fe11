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
        return self._typed(key, default, builtins.int, "a whole number")

    def float(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.float | T:
        """Return a number; a whole one is widened."""
        value = self._get(key, default)
        if value is default and not self.has(key):
            return value
        if type(value) not in {builtins.int, builtins.float}:
            raise self._wrong(key, "a number", value)
        return builtins.float(value)

    def bool(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.bool | T:
        """Return a truth value. A number is none."""
        return self._typed(key, default, builtins.bool, "a bool")

    def str(self, key: builtins.str, default: T | Required = REQUIRED) -> builtins.str | T:
        """Return a string."""
        return self._typed(key, default, builtins.str, "a string")

    def strs(self, key: builtins.str, default: T | Required = REQUIRED) -> tuple[builtins.str, ...] | T:
        """Return a list of strings, as a tuple."""
        if not self.has(key):
            return self._get(key, default)
        return self._sequence(key, None, builtins.str, "strings")

    def ints(
        self, key: builtins.str, length: builtins.int, default: T | Required = REQUIRED
    ) -> tuple[builtins.int, ...] | T:
        """Return `length` whole numbers: an array of that length, or one number for all."""
        if not self.has(key):
            return self._get(key, default)
        return self._sequence(key, length, builtins.int, "whole numbers")

    def bools(
        self, key: builtins.str, length: builtins.int, default: T | Required = REQUIRED
    ) -> tuple[builtins.bool, ...] | T:
        """Return `length` truth values: an array of that length, or one value for all."""
        if not self.has(key):
            return self._get(key, default)
        return self._sequence(key, length, builtins.bool, "bools")

    def floats(
        self, key: builtins.str, length: builtins.int, default: T | Required = REQUIRED
    ) -> tuple[builtins.float, ...] | T:
        """Return `length` float numbers: an array of that length, or one number for all."""
        if not self.has(key):
            return self._get(key, default)
        return self._sequence(key, length, builtins.float, "numbers")

    def _get(self, key: builtins.str, default: T | Required) -> Any:
        full = self._prefix + key
        if full in self._metadata:
            return self._metadata[full]
        if isinstance(default, Required):
            fact = f"the metadata key {full!r} is missing; the model cannot be read without it"
            raise CheckpointError(fact, path=self._path)
        return default

    def _typed(self, key: builtins.str, default: T | Required, kind: type, what: builtins.str) -> Any:
        value = self._get(key, default)
        if self.has(key) and type(value) is not kind:
            raise self._wrong(key, what, value)
        return value

    def _sequence(
        self, key: builtins.str, length: builtins.int | None, kind: type, what: builtins.str
    ) -> tuple[Any, ...]:
        value = self._metadata[self._prefix + key]
        many = isinstance(value, (list, tuple))
        found = tuple(value) if many else (value,) * (length or 1)
        expected = what if length is None else f"{length} {what}" + ("" if many else ", or one for all")
        if (many or length is not None) and length in {None, len(found)} and all(type(item) is kind for item in found):
            return found
        raise self._wrong(key, expected, value)

    def _wrong(self, key: builtins.str, expected: builtins.str, value: Any) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        many = f" of {len(value)} elements" if isinstance(value, list) else ""
        fact = f"the metadata key {self._prefix + key!r} is {type(value).__name__}{many} {shown}; expected {expected}"
        return CheckpointError(fact, path=self._path)
