"""`caudal ps`: what a running server has in memory."""

from __future__ import annotations

import json
import time

import click
import msgspec

from caudal.cli.list_models import human_bytes
from caudal.cli.options import json_option
from caudal.cli.running_server import RunningServer, server_options
from caudal.cli.table import write_table


class ModelRow(msgspec.Struct):
    """A model as the server tells of it; see caudal.server.model_admin_routes.ModelState."""

    model: str
    id: str
    state: str
    expires_at: float | None = None
    in_use: int = 0
    size_bytes: int = 0
    held_bytes: int = 0
    context_length: int | None = None
    healthy: bool = False
    error: str | None = None


class ModelRows(msgspec.Struct):
    """All of them."""

    models: list[ModelRow]


def until(row: ModelRow, now_s: float) -> str:
    """Say when a model leaves."""
    if row.state != "loaded":
        return row.state
    if not row.healthy:
        return "does not answer"
    if row.in_use:
        return "in use"
    if row.expires_at is None:
        return "for ever"
    seconds = max(0, round(row.expires_at - now_s))
    hours, minutes = divmod(seconds // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


@click.command()
@server_options
@json_option
def command(*, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the models that a running server has in memory."""
    server = RunningServer(url, api_key)
    rows = [row for row in server.ask("GET", "/admin/models", ModelRows).models if row.state != "unloaded"]
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(rows), indent=2))
        return
    now_s = time.time()
    table = [
        (
            row.model,
            row.id,
            human_bytes(row.held_bytes or row.size_bytes),
            "CPU",
            str(row.context_length or ""),
            until(row, now_s),
        )
        for row in rows
    ]
    write_table(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"), table)
