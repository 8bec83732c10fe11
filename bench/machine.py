"""Facts that every line of bench/results carries: commit, machine, and how fast the machine was just then."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
MODEL_FILES = {
    "SmolLM2-135M": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma-3-270M": "gemma-3-270m-q4_k_m.gguf",
    "Qwen2.5-Coder-1.5B": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}


def commit() -> str:
    """Return the checkout's commit, with "+" when files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Return the vector extensions that matter for speed."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    wanted = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm")
    return [name for name in wanted if name in words]


def facts() -> dict[str, Any]:
    """Return what identifies a measurement."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "cpu": cpu_model(),
        "cpu_features": cpu_features(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def calibration_gflops(seconds: float = 0.3) -> float:
    """Return the speed of float32 matrix products in numpy now: how busy or throttled the machine is."""
    x = np.ones((384, 384), np.float32)
    best = 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(4):
            x @ x
        best = max(best, 4 * 2 * 384**3 / (time.perf_counter() - start) / 1e9)
    return round(best, 1)


def model_paths(names: list[str]) -> list[Path]:
    """Return model files: those named by path or short name, or those of MODEL_FILES that are here."""
    folder = Path(os.environ.get("CAUDAL_TEST_MODELS") or Path.home() / ".cache" / "caudal-test-models")
    if names:
        files = {name.lower(): file for name, file in MODEL_FILES.items()}
        return [folder / files[name.lower()] if name.lower() in files else Path(name) for name in names]
    return [folder / file for file in MODEL_FILES.values() if (folder / file).exists()]


def short_name(model: Path) -> str:
    """Return a model file's name for tables."""
    return next((name for name, file in MODEL_FILES.items() if file == model.name), model.stem)


def append_result(kind: str, row: dict[str, Any], out: Path | None = None) -> None:
    """Append a row to bench/results/KIND.jsonl, or to `out`."""
    path = out or RESULTS / f"{kind}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
