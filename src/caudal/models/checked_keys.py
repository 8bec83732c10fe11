"""Numbers of a checkpoint's header, checked before anything is made of them: a hostile file must not be obeyed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from caudal.checkpoint.reader import MetadataReader
from caudal.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Larger numbers than any model has.
MAX_LAYERS = 4096
MAX_SIZE = 2**24
MAX_TOKENS = 2**31 - 1


class CheckedKeys(MetadataReader):
    """A MetadataReader that also checks ranges. Every method raises CheckpointError naming the key.

    Args:
        metadata: key -> value.
        prefix: put before every key with a dot; "" for none.
        path: the file, for errors.
    """

    def __init__(self, metadata: Mapping[str, Any], prefix: str = "", *, path: object = None) -> None:
        super().__init__(metadata, prefix, path=path)  # type: ignore[arg-type]
        self._label = f"{prefix}." if prefix else ""
        self._file = path

    def size(self, key: str, default: int | None = None, limit: int = MAX_SIZE) -> int:
        """Return a whole number from 1 to `limit`. Without a default the key must exist."""
        return self.checked(key, self.int(key) if default is None else self.int(key, default), limit)

    def checked(self, key: str, value: int, limit: int = MAX_SIZE) -> int:
        """Return a value of `key` if it is from 1 to `limit`."""
        if not 0 < value <= limit:
            self.fail(key, value, f"a number from 1 to {limit}")
        return value

    def sizes(self, key: str, values: tuple[int, ...]) -> tuple[int, ...]:
        """Return the values of `key`, of each layer one, if all are sizes."""
        return tuple(self.checked(key, value) for value in values)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0. Without a default the key must exist."""
        value = self.float(key) if default is None else self.float(key, default)
        if not 0 < value < math.inf:
            self.fail(key, value, "a positive number")
        return value

    def rope_base(self, key: str, default: float) -> float:
        """Return a finite number of at least 1."""
        value = self.float(key, default)
        if not 1 <= value < math.inf:
            self.fail(key, value, "a number of at least 1")
        return value

    def softcap(self, key: str, default: float | None) -> float | None:
        """Return a softcap; 0 in the file is off."""
        cap = self.float(key, default)
        return None if not cap else self.positive(key, cap)

    def fail(self, key: str, value: object, expected: str) -> NoReturn:
        """Say that a key's value makes no sense."""
        fact = f"{self._label}{key} is {value}; expected {expected}"
        raise CheckpointError(fact, path=self._file)
