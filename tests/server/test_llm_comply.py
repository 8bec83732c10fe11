"""The compliance suite of llm-comply against a server whose model thinks and calls tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from calling_server import calling_server

PROGRAM = Path(sys.executable).with_name("llm-comply")
NOT_FOR_US = {
    "anthropic": {"anth-image-input"},
    "open-responses": {"image-input"},
    "openai-chat": {"chat-image-input"},
}
"""What is refused on purpose: images, which no model that Caudal serves can see."""


@pytest.fixture(scope="module")
def base_url():
    with calling_server() as url:
        yield url


@pytest.mark.parametrize("model", ["scripted", "claude-sonnet-4-local", "gpt-5-local"])
@pytest.mark.parametrize("kind", NOT_FOR_US)
def test_it_passes(base_url, kind, model):
    command = [str(PROGRAM), "--format", kind, "-u", f"{base_url}/v1", "-k", "x", "-m", model, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    results = json.loads(done.stdout)["results"]
    failed = {result["id"]: result["errors"] for result in results if result["status"] == "failed"}
    assert set(failed) == NOT_FOR_US[kind], failed
    passed = [result for result in results if result["status"] == "passed"]
    assert len(passed) >= 6
