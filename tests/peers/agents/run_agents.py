"""Let coding agents complete a loop with a tool against Caudal, offline; see README.md beside this file.

    python tests/peers/agents/run_agents.py FOLDER [claude codex] [--model MODEL.gguf] [--server URL]

FOLDER has node_modules with the agents. Each gets an empty home and no variables of yours, and is told to run a command
whose output nobody can guess without running it. The exit code is 1 if one of them does not say it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
SRC = TESTS.parent / "src"
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
TASK = "Run the shell command `echo caudal-$((6*7))` once and tell me exactly what it printed."
EXPECTED = "caudal-42"
NO_NETWORK = {
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}


def claude_code(programs, home, url, model, *, is_scripted):
    """Return Claude Code's command and environment. Only its shell is allowed, and only this command in it."""
    sizes = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        **dict.fromkeys(sizes, model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    words = ["-p", TASK, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash(echo:*)"]
    return [programs / "claude", *words], environment


def codex(programs, home, url, model, *, is_scripted):
    """Return Codex CLI's command and environment, and write its settings."""
    folder = home / ".codex"
    folder.mkdir()
    text = f'model = "{model}"\nmodel_provider = "caudal"\nmodel_context_window = 32768\n'
    text += "check_for_update_on_startup = false\n[analytics]\nenabled = false\n"
    text += f'[model_providers.caudal]\nname = "caudal"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    (folder / "config.toml").write_text(text)
    sandbox = "danger-full-access" if is_scripted else "workspace-write"  # a script runs nothing but our command
    return [programs / "codex", "exec", "--json", "--skip-git-repo-check", "-s", sandbox, TASK], {}


AGENTS = {"claude": claude_code, "codex": codex}


@contextlib.contextmanager
def scripted_server(model):
    """Start a server with the scripted engine; yield its address."""
    path = os.pathsep.join(map(str, (SRC, HERE, TESTS / "server")))
    log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115 - closed below
    command = [sys.executable, HERE / "serve_tool_engine.py", model]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=log)
    try:
        yield ready_address(process, Path(log.name))
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def ready_address(process, log):
    """Return what the server says is its address."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s and process.poll() is None:
        if found := re.search(r"ready on (\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    return sys.exit(f"the server did not start:\n{log.read_text()[-2000:]}")


def events_of(text):
    """Return the JSON objects among an agent's lines."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def claude_steps(event):
    """Return what an event of Claude Code's says, as lines."""
    if event.get("type") == "result":
        yield "answer", event.get("result", "")
    for block in event.get("message", {}).get("content", []):
        if isinstance(block, dict) and block.get("type") == "tool_use":
            yield "calls", f"{block['name']} {json.dumps(block['input'])}"
        elif isinstance(block, dict) and block.get("type") == "tool_result":
            yield "gets", str(block.get("content"))


def codex_steps(event):
    """Return what an event of Codex CLI's says, as lines."""
    item = event.get("item", {})
    if event.get("type") != "item.completed":
        return
    if item.get("type") == "command_execution":
        yield "calls", item.get("command", "")
        yield "gets", item.get("aggregated_output", "").strip()
    elif item.get("type") == "agent_message":
        yield "answer", item.get("text", "")


STEPS = {"claude": claude_steps, "codex": codex_steps}


def try_agent(name, programs, url, model, *, is_scripted, timeout_s):
    """Run one agent, say what it did, and return whether it completed the loop."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        command, variables = AGENTS[name](programs, home, url, model, is_scripted=is_scripted)
        environment = {"HOME": folder, "PATH": os.environ["PATH"], **NO_NETWORK, **variables}
        work = home / "work"
        work.mkdir()
        try:
            done = subprocess.run(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            sys.stdout.write(f"{name}: FAILED: not done after {timeout_s:.0f} s\n{error.stdout or ''}\n")
            return False
    steps = [step for event in events_of(done.stdout) for step in STEPS[name](event)]
    said = next((text for kind, text in reversed(steps) if kind == "answer"), "")
    is_good = EXPECTED in said and any(kind == "gets" and EXPECTED in text for kind, text in steps)
    sys.stdout.write(f"{name}: {'completed the loop' if is_good else 'FAILED'}\n")
    sys.stdout.write("".join(f"    {kind}: {text}\n" for kind, text in steps))
    if not is_good:
        sys.stdout.write(f"    {shlex.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n")
    return is_good


def served_name(url):
    """Return the first model that a server has."""
    with urlopen(f"{url}/v1/models", timeout=30) as answer:
        return json.load(answer)["data"][0]["id"]


def main():
    """Run the agents; return 0 if every one completed the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("agents", nargs="*", default=list(AGENTS), metavar="claude|codex")
    parser.add_argument("--model", type=Path, help="the scripted engine's tokenizer and template; Qwen2.5-Coder's")
    parser.add_argument("--server", metavar="URL", help="a server of yours, with a real model, instead")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for each agent")
    options = parser.parse_args()
    models = Path(os.environ.get("CAUDAL_TEST_MODELS") or Path.home() / ".cache" / "caudal-test-models")
    model = options.model or models / QWEN
    with contextlib.ExitStack() as stack:
        if options.server is None and not model.exists():
            sys.exit(f"no {model}: name a GGUF file whose template writes tools as Qwen2.5's does, with --model")
        url = options.server or stack.enter_context(scripted_server(model))
        programs = options.folder.resolve() / "node_modules" / ".bin"
        good = [
            try_agent(
                name, programs, url, served_name(url), is_scripted=options.server is None, timeout_s=options.timeout
            )
            for name in options.agents
        ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
