"""`caudal serve A --models-dir DIR` with tiny real models in their own processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from factory import tiny_checkpoint
from tiny_hub import tiny_hub, use_hub

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)
SRC = Path(__file__).parents[2] / "src"


@contextmanager
def serving(*arguments):
    command = [sys.executable, "-m", "caudal.cli.main", "serve", "--port", "0", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        for line in process.stderr:
            if found := re.search(r"ready on (\S+)", line):
                with httpx.Client(base_url=found[1], timeout=60) as client:
                    yield client, process
                break
        else:
            pytest.fail("the server ended before it was ready")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(client, model):
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
    return client.post("/v1/chat/completions", json=body)


@pytest.fixture
def folder(tmp_path):
    tiny_checkpoint(tmp_path / "first.gguf", context_length=256)
    (tmp_path / "dir").mkdir()
    tiny_checkpoint(tmp_path / "dir" / "second-f32.gguf", arch="qwen3", context_length=384)
    (tmp_path / "dir" / "broken.gguf").write_bytes(b"GGUF" + bytes(40))
    return tmp_path


def test_all_are_listed_with_their_context_and_answer_when_asked(folder):
    arguments = (folder / "first.gguf", "--models-dir", folder / "dir", "--alias", "gpt-4=second:f32")
    with serving(*arguments) as (client, process):
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert {name: card["context_length"] for name, card in cards.items()} == {
            "first": 256, "broken": None, "second-f32": 384, "gpt-4": 384,
        }  # fmt: skip
        assert client.get("/v1/models/second:f32").json()["root"] == "second-f32"
        assert ask(client, "first").status_code == 200
        answer = ask(client, "gpt-4")
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] <= 4
        assert ask(client, "second-f32:latest").json()["choices"] == answer.json()["choices"]
        refused = ask(client, "broken")
        assert refused.status_code == 500
        assert refused.json()["error"]["code"] == "model_load_failed"
        assert str(folder) not in refused.text
        assert ask(client, "nobody").status_code == 404
        states = {row["model"]: row for row in client.get("/admin/models").json()["models"]}
        assert {name: row["state"] for name, row in states.items()} == {
            "first": "loaded", "broken": "unloaded", "second-f32": "loaded",
        }  # fmt: skip
        assert states["broken"]["error"]
        assert states["second-f32"]["held_bytes"] > 1 << 20
        assert states["first"]["expires_at"] is None
        assert states["second-f32"]["expires_at"] is not None
        assert client.get("/health").status_code == 200
        tiny_checkpoint(folder / "dir" / "new.gguf")
        assert poll(lambda: ask(client, "new").status_code == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def poll(condition, timeout_s=20):
    due = time.monotonic() + timeout_s
    while time.monotonic() < due:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_folder_alone_is_ready_at_once_and_loads_nothing(folder):
    with serving("--models-dir", folder / "dir", "--keep-alive", "0") as (client, _):
        assert client.get("/health").status_code == 200
        assert {row["state"] for row in client.get("/admin/models").json()["models"]} == {"unloaded"}
        assert ask(client, "second-f32").status_code == 200
        assert poll(lambda: {r["state"] for r in client.get("/admin/models").json()["models"]} == {"unloaded"})


def test_a_chat_template_of_the_command_line(folder, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}({{ m.role }}) {{ m.content }} {% endfor %}", encoding="utf-8")
    arguments = (folder / "first.gguf", "--models-dir", folder / "dir", "--chat-template", template)
    body = {"messages": [{"role": "user", "content": "hola"}]}
    with serving(*arguments) as (client, _):
        applied = {
            name: client.post("/apply-template", json={"model": name, **body}).json()["prompt"]
            for name in ("first", "second-f32")
        }
        assert applied["first"] == "(user) hola "
        assert "(user)" not in applied["second-f32"]
        assert client.get("/props").json()["chat_template"] == template.read_text(encoding="utf-8")
        assert client.post("/api/show", json={"model": "first"}).json()["template"] == template.read_text("utf-8")
        assert ask(client, "first").json()["usage"]["prompt_tokens"] > 0


def test_an_empty_folder_is_filled_by_a_client(tmp_path, monkeypatch):
    with tiny_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        hub.repos["org/m"] = {"m-Q4_K_M.gguf": tiny_checkpoint(tmp_path / "m.gguf").read_bytes()}
        (tmp_path / "models").mkdir()
        with serving("--models-dir", tmp_path / "models", "--manage-models") as (client, process):
            assert client.get("/v1/models").json()["data"] == []
            assert client.post("/api/pull", json={"model": "org/m"}).text.endswith('{"status":"success"}\n')
            first = ask(client, "org/m")
            assert client.post("/api/copy", json={"source": "org/m", "destination": "mine"}).status_code == 200
            assert client.request("DELETE", "/api/delete", json={"model": "org/m"}).status_code == 200
            assert ask(client, "org/m").status_code == 404
            assert ask(client, "mine").json()["choices"] == first.json()["choices"]
            assert client.request("DELETE", "/api/delete", json={"model": "mine"}).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert list(hub.cache.iterdir()) == list((tmp_path / "models").iterdir()) == []
