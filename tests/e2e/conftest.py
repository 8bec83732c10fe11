"""`caudal serve` with SmolLM2, in its own processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_models import real_model

SRC = Path(__file__).parents[2] / "src"
START = "from caudal.cli.main import main; main()"


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready."""

    url: str
    pid: int

    def engine_pid(self):
        """Return the engine's process, or skip the test where the kernel does not list a process's children."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        if not children.exists():
            pytest.skip("the kernel does not list a process's children")
        return int(children.read_text().split()[0])


@pytest.fixture(scope="module")
def smollm2_server():
    command = [sys.executable, "-c", START, "serve", str(real_model("smollm2")), "--port", "0"]
    arguments = ["--served-model-name", "smollm2", "--max-model-len", "2048"]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        found = next((m for line in process.stderr if (m := re.search(r"ready on (\S+)", line))), None)
        assert found is not None, "the server ended before it was ready"
        yield RunningServer(found[1], process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.stderr.close()
