"""schemathesis asks the running server for everything that /openapi.json offers, and for much that it does not.

Needs schemathesis in a virtual environment of its own, which `make schemathesis` makes (4.32.5 was tried);
SCHEMATHESIS names another program.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from attacks import KEY, target

ROOT = Path(__file__).parents[2]
CHECKS = "not_a_server_error,response_schema_conformance"
DEADLINE_S = 600
# 501 is an answer: llama-server's own for what it, or the served model, cannot do.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]
"""


@pytest.fixture
def schemathesis():
    program = Path(os.environ.get("SCHEMATHESIS", ROOT / "build" / "schemathesis-venv" / "bin" / "schemathesis"))
    if not program.exists():
        pytest.skip("schemathesis is not installed: runs under `make schemathesis`")
    return str(program)


def test_no_request_is_a_server_error(schemathesis, tmp_path):
    examples = os.environ.get("SCHEMATHESIS_EXAMPLES", "50")
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    config = ["--config-file", str(tmp_path / "schemathesis.toml")]
    command = [schemathesis, *config, "run", "--checks", CHECKS, "--max-examples", examples, "--workers", "2"]
    options = ["--phases", "examples,coverage,fuzzing", "--seed", "1", "--warnings", "off", "--no-color"]
    options += ["--generation-database", "none", "--request-timeout", "20", "--continue-on-failure"]
    with target(KEY, max_open_requests=64) as server:
        where = [f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}"]
        done = subprocess.run(
            [*command, *options, *where], capture_output=True, text=True, check=False, timeout=DEADLINE_S, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        server.check_alive()
