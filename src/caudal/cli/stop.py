"""`caudal stop MODEL`: takes a model out of a running server's memory."""

from __future__ import annotations

import click

from caudal.cli.ps import ModelRow
from caudal.cli.running_server import RunningServer, server_options


@click.command()
@click.argument("model")
@server_options
def command(*, model: str, url: str | None, api_key: str | None) -> None:
    """Unload MODEL of a running server. One in use leaves when the last of its requests has ended."""
    row = RunningServer(url, api_key).ask("POST", "/admin/models/unload", ModelRow, {"model": model})
    if row.state == "loading":
        click.echo(f"{row.model} is being loaded; it will be unloaded when whoever waits for it is done", err=True)
    elif row.state != "unloaded":
        click.echo(f"{row.model} is in use; it will be unloaded when its requests have ended", err=True)
