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


def parent_of(pid):
    """Return the parent of a process, None if the process has gone (proc(5): fields after the name in brackets)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready."""

    url: str
    pid: int

    def engine_pid(self):
        """Return the server's only child process."""
        if not Path("/proc/self/stat").exists():
            pytest.skip("finds the engine's process in /proc, which only Linux has; runs in CI")
        pids = [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return next(int(pid) for pid in pids if parent_of(pid) == self.pid)


@pytest.fixture(scope="module")
def smollm2_server(tmp_path_factory):
    command = [sys.executable, "-c", START, "serve", str(real_model("smollm2")), "--port", "0"]
    arguments = ["--served-model-name", "smollm2", "--max-model-len", "2048"]
    state = tmp_path_factory.mktemp("state")  # no keys of whoever runs the tests
    environment = {**os.environ, "PYTHONPATH": str(SRC), "XDG_STATE_HOME": str(state)}
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
