"""A cursor over the bytes of a file that nobody vouches for: every read is checked against what is left."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from caudal.errors import CheckpointError

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

# A tokenizer.json inside a string is the longest value known, at about 30 MB.
MAX_STRING_BYTES = 1 << 26
# One vocabulary of 262k tokens has 1.3M elements (tokens, scores, types, merges).
MAX_ARRAY_ELEMENTS = 1 << 23


class ByteReader:
    """Reads little-endian values one after another.

    A count is compared with the bytes that are left before anything is allocated for it, and all arrays of a file
    share one allowance of elements, so a file can cost no more memory than a small multiple of its own size.

    Attributes:
        path: the file, for errors.
        offset: of the next byte to be read.
    """

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._size = len(data)
        self._elements_left = MAX_ARRAY_ELEMENTS
        self.path = path
        self.offset = 0

    def error(self, fact: str, offset: int | None = None) -> CheckpointError:
        """Make an error about the value at `offset`, by default the next byte."""
        return CheckpointError(fact, path=self.path, offset=self.offset if offset is None else offset)

    def need(self, count: int, smallest: int, what: str) -> None:
        """Fail unless `count` things of at least `smallest` bytes can still follow."""
        left = self._size - self.offset
        if count * smallest > left:
            fact = f"the file ends inside {what}: {count} of at least {smallest} bytes expected, {left} bytes left"
            raise self.error(fact)

    def values(self, letter: str, count: int, what: str) -> tuple[Any, ...]:
        """Read `count` values of a type named by its letter in the struct module."""
        size = struct.calcsize("<" + letter)
        self.need(count, size, what)
        # A byte other than 0 and 1 is a true bool; struct reads it so.
        found = struct.unpack_from(f"<{count}{letter}", self._data, self.offset)
        self.offset += count * size
        return found

    def value(self, letter: str, what: str) -> Any:
        """Read one value."""
        return self.values(letter, 1, what)[0]

    def text(self, what: str, limit: int = MAX_STRING_BYTES, *, errors: str = "replace") -> str:
        """Read a string: u64 length, then UTF-8. With errors="strict" bytes that are not UTF-8 are refused."""
        start = self.offset
        length: int = self.value("Q", f"the length of {what}")
        if length > limit:
            fact = f"{what} is said to have {length} bytes; at most {limit} are allowed"
            raise self.error(fact, start)
        self.need(length, 1, what)
        raw = self._data[self.offset : self.offset + length]
        self.offset += length
        try:
            return raw.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            fact = f"{what} is not UTF-8: {raw[:40]!r}"
            raise self.error(fact, start) from error

    def spend_elements(self, count: int, what: str) -> None:
        """Take `count` elements from the file's allowance for arrays."""
        if count > self._elements_left:
            fact = f"{what} is said to have {count} elements; at most {self._elements_left} more are allowed"
            raise self.error(fact)
        self._elements_left -= count

    def texts(self, count: int, what: str) -> list[str]:
        """Read `count` strings. The loop is flat because vocabularies are long."""
        self.need(count, 8, what)
        data, offset, size = self._data, self.offset, self._size
        length_at = struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            start = offset + 8
            if start > size:
                fact = f"the file ends inside {what}, at string {len(found)} of {count}"
                raise self.error(fact, offset)
            end = start + length_at(data, offset)[0]
            if end > size or end - start > MAX_STRING_BYTES:
                fact = f"string {len(found)} of {what} is said to have {end - start} bytes; {size - start} are left"
                raise self.error(fact, offset)
            found.append(data[start:end].decode("utf-8", "replace"))
            offset = end
        self.offset = offset
        return found
