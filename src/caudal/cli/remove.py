"""`caudal rm MODEL`: deletes a downloaded model."""

from __future__ import annotations

import click

from caudal.cli.list_models import human_bytes
from caudal.hub.remove import plan_removal


@click.command()
@click.argument("model")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(*, model: str, yes: bool) -> int:
    """Delete MODEL from the Hugging Face cache: its files, and nothing that another model uses."""
    removal = plan_removal(model)
    names = ", ".join(sorted({link.name for link in removal.links}))
    if not yes:
        question = f"delete {names} of {removal.folder.name.removeprefix('models--').replace('--', '/', 1)}"
        if not click.confirm(f"{question} ({human_bytes(removal.num_bytes)})?", err=True):
            click.echo("nothing was deleted", err=True)
            return 1
    removal.carry_out()
    click.echo(f"deleted {names}; {human_bytes(removal.num_bytes)} are free again", err=True)
    return 0
