"""Coding agents complete a loop with a tool, offline: the scripted model has them run one command and tells the result.

They run where their programs are installed; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from byte_tokenizer import ByteTokenizer
from conftest import MODEL, make_config, real_server
from scripted_engine import ScriptedEngine
from tagged_format import write_tagged

from caudal.engine.local_client import LocalEngineClient

COMMAND = "echo caudal-$((40+2))"
SHELLS = {
    "Bash": {"command": COMMAND, "description": "prints"},
    "exec_command": {"cmd": COMMAND},
    "shell_command": {"command": COMMAND},
    "shell": {"command": ["bash", "-lc", COMMAND]},
}


class OneCommandTokenizer(ByteTokenizer):
    """Has the engine call the shell, and after that repeat the last line of what it printed."""

    def encode_chat(self, messages, tools=None, **variables):
        names = [tool["function"]["name"] for tool in tools or []]
        last = next(message for message in reversed(messages) if message["role"] != "system")
        shell = next((name for name in names if name in SHELLS), None)
        if last["role"] == "tool":
            order = f"The tool said: {last['content'].strip().splitlines()[-1]}"
        elif shell is None:
            order = "ok"
        else:
            call = {"name": shell, "arguments": SHELLS[shell]}
            order = f"<think>let me</think>ok<tool_call>{json.dumps(call)}</tool_call>"
        size = {"role": "user", "content": "x" * sum(len(message["content"]) for message in messages)}
        return super().encode_chat([size, {"role": "user", "content": f"say:{order}"}], tools, **variables)


@pytest.fixture(scope="module")
def base_url():
    with pytest.MonkeyPatch.context() as patch:
        write_tagged(patch)
        config = make_config(max_model_len=500_000)
        with real_server(lambda: LocalEngineClient(ScriptedEngine(config)), tokenizer=OneCommandTokenizer()) as (
            url,
            _,
        ):
            yield url


def run(command, home, **environment):
    variables = {"HOME": str(home), "PATH": os.environ["PATH"], **environment}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(command, cwd=home, env=variables, text=True, timeout=120, check=False, **pipes)


@pytest.mark.skipif(shutil.which("claude") is None, reason="needs Claude Code on the PATH")
def test_claude_code(base_url, tmp_path):
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    done = run(
        ["claude", "-p", "run the command", "--output-format", "json", "--allowedTools", "Bash"],
        tmp_path,
        ANTHROPIC_BASE_URL=base_url,
        ANTHROPIC_AUTH_TOKEN="x",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        **dict.fromkeys(models, MODEL.name),
    )
    result = json.loads(done.stdout)
    assert result["result"] == "The tool said: caudal-42"
    assert result["num_turns"] == 2


@pytest.mark.skipif(shutil.which("codex") is None, reason="needs Codex CLI on the PATH")
def test_codex(base_url, tmp_path):
    settings = tmp_path / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(
        f'model = "{MODEL.name}"\nmodel_provider = "caudal"\n[model_providers.caudal]\nname = "caudal"\n'
        f'base_url = "{base_url}/v1"\nwire_api = "responses"\n'
    )
    # The only command is ours, and sandboxes are not to be had in every container.
    command = ["codex", "exec", "--skip-git-repo-check", "-s", "danger-full-access", "run the command"]
    done = run(command, tmp_path)
    assert "The tool said: caudal-42" in done.stdout, done.stderr
