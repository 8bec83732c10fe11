"""A plain table on stdout: columns as wide as they must be, two spaces between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows of as many texts as the head has."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
