"""`caudal version`."""

from __future__ import annotations

import click

from caudal import __version__


@click.command()
def command() -> None:
    """Print the version."""
    click.echo(f"caudal {__version__}")
