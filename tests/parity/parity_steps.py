"""Runs a model on a backend through real steps: whole prompts, or chunks of several sequences in a shuffled cache."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from generate_reference import CASES, DATA

from caudal.backends.reference import ReferenceBackend
from caudal.checkpoint import open_checkpoint
from caudal.core.step_plan import PlannedRow, StepPlan
from caudal.engine.step_batch import build_step_batch
from caudal.models.load import load_model

BACKENDS = ("reference", "cpu")
BLOCK_SIZE = 16


def python_with_torch():
    """The interpreter that makes reference data: this one, or that which CAUDAL_PARITY_PYTHON names."""
    if named := os.environ.get("CAUDAL_PARITY_PYTHON"):
        return named
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return sys.executable
    return pytest.skip("needs torch and transformers: runs in `make parity`, by hand and before a release")


def make_backend(name, kv_dtype="f32"):
    """A backend that computes in float32; skips the test if it is not built."""
    if name == "reference":
        return ReferenceBackend(kv_dtype)
    if importlib.util.find_spec("caudal._native") is None:
        pytest.skip("the native module is not built: runs after `make native` or an install, as in CI")
    from caudal.backends.cpu.cpu_backend import CpuBackend  # noqa: PLC0415 - needs the native module

    return CpuBackend(num_threads=2, max_tokens=128, exact=True, kv_dtype=kv_dtype)


def load_case(case, backend, directory=DATA):
    """The case's model on a backend, its prompt and its reference logits [T, V]."""
    model = load_model(open_checkpoint(Path(directory) / f"{case.name}.gguf"), backend, case.max_model_len)
    with np.load(Path(directory) / f"{case.name}.npz") as reference:
        return model, reference["token_ids"].tolist(), reference["logits"]


def case_named(name):
    return next(case for case in CASES if case.name == name)


def relative_error(logits, expected):
    """Largest difference over the largest logit."""
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


@dataclass(frozen=True)
class Sequence:
    """A prompt and the sizes of the chunks in which it is computed; its last chunk takes what is left."""

    token_ids: list[int]
    chunks: tuple[int, ...] = ()


def run_sequences(model, backend, sequences, seed=0):
    """Compute all sequences side by side; returns the logits [T, V] of each.

    Every KV group hands out block ids in an order of its own, and takes back (-1 in the table) what a window left.
    """
    windows = model.spec.kv_windows
    rng = np.random.default_rng(seed)
    num_blocks = [sum(-(-len(s.token_ids) // BLOCK_SIZE) for s in sequences) + 3] * len(windows)
    free = [rng.permutation(count).tolist() for count in num_blocks]
    step = backend.compile(model.forward, backend.kv_cache(model.spec.kv_layers(), num_blocks, BLOCK_SIZE))
    tables = [[[] for _ in windows] for _ in sequences]
    done = [0] * len(sequences)
    logits = [[] for _ in sequences]
    for step_id in range(1000):
        rows = []
        for index, sequence in enumerate(sequences):
            left = len(sequence.token_ids) - done[index]
            if left:
                size = min(left, sequence.chunks[step_id] if step_id < len(sequence.chunks) else left)
                rows.append(plan_row(index, done[index], size, tables[index], free, windows))
        if not rows:
            return [np.concatenate(parts) for parts in logits]
        result = step(build_step_batch(StepPlan(step_id, BLOCK_SIZE, tuple(rows)), lambda i: sequences[i].token_ids))
        ends = np.cumsum([row.num_tokens for row in rows])
        for row, end in zip(rows, ends, strict=True):
            logits[row.seq_id].append(np.array(result[end - row.num_tokens : end]))
            done[row.seq_id] += row.num_tokens
    raise AssertionError("the sequences never end")


def plan_row(seq_id, start, size, tables, free, windows):
    """Allocate blocks for tokens [start, start + size), and let go of those that no query sees any more."""
    for table, pool, window in zip(tables, free, windows, strict=True):
        while len(table) * BLOCK_SIZE < start + size:
            table.append(pool.pop())
        for block in range(0 if window is None else max(0, start - window + 1) // BLOCK_SIZE):
            if table[block] >= 0:
                pool.insert(0, table[block])
                table[block] = -1
    return PlannedRow(seq_id, start, size, size, samples=False, block_tables=tuple(map(tuple, tables)))
