"""From token ids to the bytes they stand for.

Source: GPT-2's byte-to-character table; SentencePiece's U+2581 for a space and <0xXX> for single bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter
from caudal.tokenizer.token_types import NORMAL, USER_DEFINED

if TYPE_CHECKING:
    from collections.abc import Sequence

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_of_character() -> dict[str, int]:
    """Return the printable stand-in -> byte table of byte-level vocabularies: 256 entries."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


class TokenBytes(dict[int, bytes]):
    """Token id -> bytes, filled in as ids are asked for. Raises InvalidParameter for an id out of range.

    Control tokens stand for their own text. A byte-level token holding a character that stands for no byte is
    taken as text.

    Args:
        tokens: text of every id.
        token_types: type of every id.
        byte_level: normal tokens are spelled in stand-ins for bytes; else U+2581 means a space.
    """

    def __init__(self, tokens: Sequence[str], token_types: Sequence[int], *, byte_level: bool) -> None:
        super().__init__()
        self._tokens = tokens
        self._types = token_types
        self._byte_of = byte_of_character() if byte_level else None

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self._tokens):
            message = f"token id {token_id} is out of range; this model has ids 0 to {len(self._tokens) - 1}"
            raise InvalidParameter(message)
        value = self._bytes_of(self._tokens[token_id], self._types[token_id])
        self[token_id] = value
        return value

    def _bytes_of(self, text: str, kind: int) -> bytes:
        if self._byte_of is not None:
            if kind == NORMAL and all(character in self._byte_of for character in text):
                return bytes(self._byte_of[character] for character in text)
        else:
            byte = _BYTE_TOKEN.fullmatch(text)
            if byte is not None:
                return bytes([int(byte[1], 16)])
            if kind in (NORMAL, USER_DEFINED):
                text = text.replace("\u2581", " ")
        return text.encode("utf-8", "replace")
