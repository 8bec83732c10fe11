"""`caudal list`: the models that a name can be given for."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import click

from caudal.cli.options import json_option
from caudal.cli.table import write_table
from caudal.hub.resolve import list_models


def human_bytes(size: int) -> str:
    """Write a size in the unit that leaves one to three digits before the point."""
    amount = float(size)
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while amount >= 1000 and unit != "TiB":
        amount, unit = amount / 1024, next(units)
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def human_age(seconds: float) -> str:
    """Say how long ago something was, in the largest unit that fits."""
    for unit, length_s in (
        ("year", 365 * 86400),
        ("month", 30 * 86400),
        ("day", 86400),
        ("hour", 3600),
        ("minute", 60),
    ):
        count = int(seconds // length_s)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "now"


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """List the models on this disk: the demo model and those in the Hugging Face cache."""
    models = list_models()
    if as_json:
        rows = [
            {"name": m.name, "path": str(m.path), "size_bytes": m.size_bytes, "modified": _iso(m.modified_s)}
            for m in models
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    if not models:
        click.echo("no models found; get one with `caudal pull`, or give the path of a .gguf file", err=True)
        return
    now_s = time.time()
    rows_shown = [(m.name, human_bytes(m.size_bytes), human_age(now_s - m.modified_s)) for m in models]
    write_table(("NAME", "SIZE", "MODIFIED"), rows_shown)


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(int(time_s), UTC).isoformat()
