"""Servers in processes of their own, started for one measurement: `caudal serve`, and llama-server from xllamacpp."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from rivals import Flags

HERE = Path(__file__).parent
START_S = 120
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A running server.

    Attributes:
        address: host and port.
        process_id: of the process that speaks HTTP.
    """

    def __init__(self, process_id: int, address: tuple[str, int]) -> None:
        self.address = address
        self.process_id = process_id

    def cpu_s(self) -> float:
        """Seconds of processor time that the process has used, all its threads together and without its children."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS  # utime and stime; source: proc(5)

    def child_cpu_s(self) -> float:
        """The same of its child processes: Caudal's engine is one."""
        children = Path(f"/proc/{self.process_id}/task/{self.process_id}/children").read_text().split()
        return sum(Server(int(child), self.address).cpu_s() for child in children)


@contextmanager
def _started(command: list[str], environment: Mapping[str, str], address: re.Pattern[str]) -> Iterator[Server]:
    """Start a server, wait until it says its address and answers /health, and stop it at the end."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            server = _wait_until_ready(process, log, address)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Any, address: re.Pattern[str]) -> Server:
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s and process.poll() is None:
        time.sleep(0.05)
        log.seek(0)
        found = address.search(log.read())
        if found is None:
            continue
        host, port = found[1], int(found[2])
        try:
            with urlopen(f"http://{host}:{port}/health", timeout=5):
                return Server(process.pid, (host, port))
        except (URLError, OSError):
            continue
    log.seek(0)
    sys.exit(f"the server did not start within {START_S} s (exit code {process.poll()}):\n{log.read()[-2000:]}")


def python_server(arguments: list[str], environment: Mapping[str, str]) -> AbstractContextManager[Server]:
    """Start Caudal's server by a command line of this Python."""
    return _started([sys.executable, *arguments], environment, re.compile(r"ready on http://([\d.]+):(\d+)"))


def caudal_server(model: Path, threads: int, arguments: list[str]) -> AbstractContextManager[Server]:
    """Start `caudal serve` of this checkout."""
    command = ["-m", "caudal.cli.main", "serve", str(model), "--port", "0", "-t", str(threads)]
    return python_server([*command, *arguments], {})


def llama_server(
    python: str, model: Path, threads: int, arguments: list[str], flags: Flags
) -> AbstractContextManager[Server]:
    """Start llama-server under a Python that has xllamacpp."""
    command = [python, str(HERE / "llama_server.py"), str(model), "-t", str(threads), *arguments]
    command += ["--flash-attn", flags.flash_attention]
    environment = {"GGML_CPU_TILED_MM": flags.tiled}
    return _started(command, environment, re.compile(r'"address": "http://([\d.]+):(\d+)"'))
