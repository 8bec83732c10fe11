"""Clients that people use, unchanged, against a running server. They live in a virtual environment of their own.

`make clients` and CI make it in build/clients-venv; CLIENTS_PYTHON names another one. Tried with litellm 1.110.2,
langchain-openai 1.7.4 and lm-eval 0.4.13; openai is tested in test_official_client.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from attacks import target

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("CLIENTS_PYTHON", HERE.parents[1] / "build" / "clients-venv" / "bin" / "python"))
TEXT = "añ 🎉"
NUM_TOKENS = len(TEXT.encode()) + 1


@pytest.fixture(scope="module")
def server():
    with target() as found:
        yield found


def run(script, package, *arguments, home):
    """Run a client's script in the clients' environment, without this one's; return what it wrote last."""
    if not PYTHON.exists():
        pytest.skip("the clients are not installed: runs under `make clients`")
    has = subprocess.run([str(PYTHON), "-c", f"import {package}"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip(f"{package} is not installed among the clients: runs under `make clients`")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }
    done = subprocess.run(
        [str(PYTHON), str(HERE / "clients" / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_litellm(server, tmp_path):
    found = run("with_litellm.py", "litellm", server.url, home=tmp_path)
    for name in ("openai/scripted", "hosted_vllm/scripted"):
        assert found[name] == [TEXT, "stop", NUM_TOKENS]
        assert found[f"{name} stream"] == [TEXT, NUM_TOKENS]
    assert found["text"] == "abc"
    assert found["too long"]
    assert found["unknown"]


def test_langchain(server, tmp_path):
    found = run("with_langchain.py", "langchain_openai", server.url, home=tmp_path)
    assert found == {
        "text": TEXT,
        "usage": NUM_TOKENS,
        "reason": "stop",
        "stream": TEXT,
        "stream usage": NUM_TOKENS,
        "batch": ["a", "b"],
        "stop": "one ",
        "completion": "abc",
        "too long": "context_length_exceeded",
    }


def test_lm_eval_generates(server, tmp_path):
    found = run("with_lm_eval.py", "lm_eval", server.url, "generate", str(tmp_path), home=tmp_path)
    assert found["exact_match,none"] == pytest.approx(2 / 3)


def test_lm_eval_scores_with_the_servers_tokenizer(server, tmp_path):
    found = run("with_lm_eval.py", "lm_eval", server.url, "score", str(tmp_path), home=tmp_path)
    assert found["acc,none"] == pytest.approx(2 / 3)  # each token costs the same here: the shortest choice wins
