"""`caudal list`: the models that a name can be given for."""

from __future__ import annotations

import json

import click

from caudal.cli.options import json_option
from caudal.hub.resolve import list_models


def human_bytes(size: int) -> str:
    """Write a size in the unit that leaves one to three digits before the point."""
    amount = float(size)
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while amount >= 1000 and unit != "TiB":
        amount, unit = amount / 1024, next(units)
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """List the models on this disk: the demo model and those in the Hugging Face cache."""
    models = list_models()
    if as_json:
        rows = [{"name": m.name, "path": str(m.path), "size_bytes": m.size_bytes} for m in models]
        click.echo(json.dumps(rows, indent=2))
        return
    if not models:
        click.echo("no models found; give the path of a .gguf file, or see `caudal run --help`", err=True)
        return
    width = max(len("NAME"), *(len(m.name) for m in models))
    click.echo(f"{'NAME':<{width}}  SIZE")
    for model in models:
        click.echo(f"{model.name:<{width}}  {human_bytes(model.size_bytes)}")
