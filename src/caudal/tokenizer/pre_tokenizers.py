"""The table of pre-tokenisers: how a text is cut into words before byte-pair merges, by name.

Source: names and regular expressions as published by llama.cpp (MIT), kept in pre_tokenizers.json.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import resources

import msgspec

from caudal.errors import UnsupportedFormat

_logger = logging.getLogger(__name__)


class _Name(msgspec.Struct):
    splits: str
    ignore_merges: bool = False
    add_bos: bool = False


class _Splits(msgspec.Struct):
    byte_level: bool
    regexes: tuple[str, ...]


class _Table(msgspec.Struct):
    note: str
    splits: dict[str, _Splits]
    names: dict[str, _Name]
    not_yet: dict[str, str]


@dataclass(frozen=True)
class PreTokenizer:
    """How one name cuts a text.

    Attributes:
        regexes: applied one after the other, each match becomes a piece of its own.
        byte_level: pieces are spelled in the 256 printable stand-ins for bytes; else in UTF-8 with U+2581 for a space.
        ignore_merges: a piece that is a token is taken whole, without merging.
        add_bos: the default where the file does not say.
    """

    regexes: tuple[str, ...]
    byte_level: bool
    ignore_merges: bool
    add_bos: bool


def read_table() -> _Table:
    """Return the whole table, read from the package's data file."""
    data = resources.files(__package__).joinpath("pre_tokenizers.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)


def find_pre_tokenizer(name: str | None, *, path: object = None) -> PreTokenizer:
    """Return the pre-tokeniser called `name`. Raises UnsupportedFormat for a name that is not in the table."""
    table = read_table()
    if name is None:
        _logger.warning(
            "%s: no tokenizer.ggml.pre in the file; words are cut in a default way, answers may be worse. "
            "Convert the model again with a newer converter.",
            path or "tokenizer",
        )
        name = "default"
    row = table.names.get(name)
    if row is None:
        reason = table.not_yet.get(name, "it is not in Caudal's table")
        fact = (
            f"tokenizer.ggml.pre is {name!r}: {reason}. Words would be cut wrongly, so the model is not loaded; "
            "use a newer Caudal, or another GGUF of this model, or report the name with the model's origin. "
            f"Known names: {', '.join(sorted(table.names))}"
        )
        raise UnsupportedFormat(fact, path=path)
    splits = table.splits[row.splits]
    return PreTokenizer(splits.regexes, splits.byte_level, row.ignore_merges, row.add_bos)
