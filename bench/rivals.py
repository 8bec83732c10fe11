"""Runs one speed test in a fresh process, with Caudal or with llama.cpp."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
BATCH_LEN = 32  # prompt and answer of each stream in a bN test


@dataclass(frozen=True)
class Flags:
    """What llama.cpp is run with: its best of these counts."""

    flash_attention: str = "on"
    tiled: str = "1"

    def __str__(self) -> str:
        return f"-fa {self.flash_attention} GGML_CPU_TILED_MM={self.tiled}"


LLAMA_FLAGS = tuple(Flags(fa, tiled) for fa in ("on", "off") for tiled in ("1", "0"))


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Return a command's stdout; its stderr is shown only if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def split(test: str) -> tuple[str, int]:
    """Split "pp512" into ("pp", 512)."""
    kind = test.rstrip("0123456789")
    return kind, int(test[len(kind) :])


def one_test_arguments(test: str) -> list[str]:
    """Return the flags by which `caudal bench` and llama_cpp.py run one test alone."""
    kind, size = split(test)
    sizes = {"pp": "0", "tg": "0", "b": ""} | {kind: str(size)}
    return ["-p", sizes["pp"], "-n", sizes["tg"], "-b", sizes["b"]]


@dataclass
class Caudal:
    """`caudal bench` of this checkout."""

    threads: int
    exact: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    def measure(self, model: Path, test: str) -> dict[str, Any]:
        """Return what `caudal bench --json` says of one test."""
        command = [sys.executable, "-m", "caudal.cli.main", "bench", str(model), "--json", "-r", "1"]
        command += [*one_test_arguments(test), "-t", str(self.threads), *(["--exact"] if self.exact else [])]
        row: dict[str, Any] = json.loads(run(command))
        self.info = {"isa": row["isa"], "threads": row["threads"]}
        return row


@dataclass
class LlamaPython:
    """llama.cpp inside the xllamacpp wheel, driven by llama_cpp.py."""

    python: str
    threads: int
    info: dict[str, Any] = field(default_factory=dict)

    def measure(self, model: Path, test: str, flags: Flags) -> float:
        """Return tokens per second."""
        command = [self.python, str(HERE / "llama_cpp.py"), "bench", str(model), "-r", "1", "-t", str(self.threads)]
        command += [*one_test_arguments(test), "--flash-attn", flags.flash_attention]
        row = json.loads(run(command, {"GGML_CPU_TILED_MM": flags.tiled}))
        self.info = {"source": "xllamacpp", "system_info": row["system_info"]}
        return float(row["tokens_per_s"])


@dataclass
class LlamaBinaries:
    """llama-bench and llama-batched-bench."""

    bench: str
    batched_bench: str
    threads: int
    info: dict[str, Any] = field(default_factory=lambda: {"source": "llama-bench"})

    def measure(self, model: Path, test: str, flags: Flags) -> float:
        """Return tokens per second."""
        kind, size = split(test)
        environment = {"GGML_CPU_TILED_MM": flags.tiled}
        shared = ["-m", str(model), "-t", str(self.threads)]
        if kind == "b":
            command = [self.batched_bench, *shared, "-c", str(size * 256), "-npp", str(BATCH_LEN)]
            command += ["-ntg", str(BATCH_LEN), "-npl", str(size), "-fa", flags.flash_attention]
            lines = run([*command, "--output-format", "jsonl"], environment).splitlines()
            rows = [json.loads(line) for line in lines if line.startswith("{")]
            return float(rows[-1]["speed_tg"])
        command = [self.bench, *shared, "-p", str(size if kind == "pp" else 0), "-n", str(size if kind == "tg" else 0)]
        command += ["-fa", "1" if flags.flash_attention == "on" else "0", "-r", "1", "-o", "json"]
        row = json.loads(run(command, environment))[0]
        self.info |= {"build": row.get("build_commit")}
        return float(row["avg_ts"])


Llama = LlamaPython | LlamaBinaries
