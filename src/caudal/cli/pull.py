"""`caudal pull MODEL`: downloads a model into the Hugging Face cache."""

from __future__ import annotations

import sys
import time

import click

from caudal.cli.list_models import human_bytes
from caudal.cli.options import is_a_terminal
from caudal.cli.progress import CLEAR_LINE

_SHOW_EVERY_S = 0.1


class PullLine:
    """A line on the terminal that says how far a download is."""

    def __init__(self) -> None:
        self._file = ""
        self._begun_s = self._shown_s = 0.0
        self._begun_bytes = 0

    def __call__(self, file: str, done: int, total: int) -> None:
        """Show it, but not too often."""
        now_s = time.monotonic()
        if file != self._file:
            self._file, self._begun_s, self._begun_bytes = file, now_s, done
        if now_s - self._shown_s < _SHOW_EVERY_S and done < total:
            return
        self._shown_s = now_s
        elapsed_s = now_s - self._begun_s
        rate = f", {human_bytes(int((done - self._begun_bytes) / elapsed_s))}/s" if elapsed_s > 1 else ""
        share = 100 if total == 0 else 100 * done // total
        text = f"{file.rpartition('/')[2]}: {share} % of {human_bytes(total)}{rate}"
        sys.stderr.write(f"{CLEAR_LINE}{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        sys.stderr.write(CLEAR_LINE)
        sys.stderr.flush()


@click.command()
@click.argument("model")
def command(*, model: str) -> None:
    """Download MODEL: ORG/REPO, ORG/REPO:QUANT or ORG/REPO/FILE.gguf of the Hugging Face hub.

    Without QUANT it is Q4_K_M, or what the repository has instead. An interrupted download goes on where it ended.
    Prints the path of the model.
    """
    from caudal.hub.pull import pull  # noqa: PLC0415 - a wrong flag is told before anything is imported

    line = PullLine() if is_a_terminal(sys.stderr) else None
    try:
        pulled = pull(model, line)
    finally:
        if line is not None:
            line.clear()
    size = human_bytes(pulled.num_bytes)
    click.echo(f"{pulled.name}: {size}" + ("" if pulled.num_new_bytes else ", was here already"), err=True)
    click.echo(str(pulled.path))
