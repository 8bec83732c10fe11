"""Usage as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import msgspec

from caudal.server.keys.usage import UsageRow

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def usage_csv(rows: Iterable[UsageRow]) -> str:
    """Return the rows as CSV (RFC 4180) with a line of names. A name that a spreadsheet would compute is quoted."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(UsageRow.__struct_fields__)
    for row in rows:
        writer.writerow(_plain(value) for value in msgspec.structs.astuple(row))
    return text.getvalue()


def _plain(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
