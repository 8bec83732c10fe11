"""Importing Caudal and asking for help is quick and loads nothing heavy."""

import os
import subprocess
import sys
import time

from source_tree import ROOT

HEAVY = ("numpy", "torch", "starlette", "uvicorn", "tokenizers", "jinja2", "caudal._native", "asyncio")
HELP_BUDGET_S = 0.2
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


def loaded_by(statement):
    code = f"{statement}\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=ENVIRONMENT
    ).stdout.strip()


def test_importing_caudal_loads_nothing_heavy():
    assert loaded_by("import caudal; caudal.SamplingParams") == "[]"


def test_the_command_line_loads_nothing_heavy_before_it_knows_the_verb():
    assert loaded_by("import caudal.cli.main") == "[]"


def test_help_is_quick():
    """The best of several runs: the promise is about our work, not about a busy machine."""
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        command = [sys.executable, "-m", "caudal.cli.main", "--help"]
        subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
        best = min(best, time.perf_counter() - start)
        if best < HELP_BUDGET_S:
            return
    raise AssertionError(f"caudal --help took {best:.3f} s at best; the budget is {HELP_BUDGET_S} s")
