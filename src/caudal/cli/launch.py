"""`caudal launch AGENT`: what an agent needs to work with a running server; with --exec, started with it."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import string
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from caudal.cli.agents import AGENTS, Agent
from caudal.cli.options import json_option
from caudal.cli.running_server import RunningServer, server_options, server_url
from caudal.errors import CaudalError, ConfigError

_UNKNOWN_CONTEXT = 32768
_MAX_OUTPUT = 32_000
_TIMEOUT_S = 5.0


class _Models(msgspec.Struct):
    """GET /v1/models."""

    data: list[dict[str, Any]]


class _Template(string.Formatter):
    """Fills in a template; !j writes a value as JSON, which is also TOML and YAML, !t as the inside of such a text."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Return the value as the conversion wants it."""
        if conversion == "j":
            return json.dumps(value, ensure_ascii=False)
        if conversion == "t":
            return json.dumps(value, ensure_ascii=False)[1:-1]
        return super().convert_field(value, conversion)


@dataclass(frozen=True)
class Setup:
    """What an agent needs, filled in for a server."""

    agent: Agent
    values: dict[str, Any]

    def fill(self, text: str, folder: str = "") -> str:
        """Return a template's text."""
        return _Template().vformat(text, (), {**self.values, "folder": folder})

    def environment(self, folder: str | None = None) -> dict[str, str]:
        """Return the variables; those that lead to the file only with its folder."""
        templates = {**self.agent.environment, **(self.agent.file_environment if folder is not None else {})}
        return {name: self.fill(text, folder or "") for name, text in templates.items()}

    def command(self, folder: str | None = None) -> list[str]:
        """Return the command line."""
        templates = (*self.agent.command, *(self.agent.file_arguments if folder is not None else ()))
        return [self.fill(text, folder or "") for text in templates]

    @property
    def notes(self) -> list[str]:
        """What a person must do."""
        return [self.fill(note) for note in self.agent.notes]

    @property
    def file_text(self) -> str | None:
        """What is in the configuration file, if there is one."""
        return None if self.agent.file is None else self.fill(self.agent.file.text)


def find_agent(name: str) -> Agent:
    """Return an agent's row.

    Raises:
        ConfigError: there is none of that name.
    """
    agent = AGENTS.get(name.lower())
    if agent is None:
        near = difflib.get_close_matches(name.lower(), AGENTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        message = f"unknown agent {name!r}; {hint}known ones are {', '.join(AGENTS)}"
        raise ConfigError(message)
    return agent


def served_models(server: RunningServer) -> list[dict[str, Any]]:
    """Return what the server lists under /v1/models.

    Raises:
        CaudalError: nobody answers there, the key is wrong, or it is no such server.
    """
    models = server.ask("GET", "/v1/models", _Models, timeout_s=_TIMEOUT_S).data
    if not all(isinstance(model.get("id"), str) for model in models):
        message = f"what answers at {server.url} is no OpenAI API; give the --url of a Caudal server"
        raise CaudalError(message)
    if not models:
        message = f"the server at {server.url} serves no model"
        raise CaudalError(message)
    return models


def choose_model(models: list[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the model of that name, or the first.

    Raises:
        ConfigError: it is not served.
    """
    if name is None:
        return models[0]
    chosen = next((model for model in models if model["id"] == name), None)
    if chosen is None:
        near = difflib.get_close_matches(name, [model["id"] for model in models], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "it has " + ", ".join(model["id"] for model in models[:8])
        message = f"the server does not serve {name!r}; {hint}"
        raise ConfigError(message)
    return chosen


def setup_of(agent: Agent, root: str, key: str, model: dict[str, Any]) -> Setup:
    """Fill in an agent's row."""
    context = model.get("max_model_len") or model.get("context_length") or _UNKNOWN_CONTEXT
    output = min(_MAX_OUTPUT, max(1, context // 4))
    values = {
        "root": root,
        "base": f"{root}/v1",
        "key": key or "caudal",
        "model": model["id"],
        "context": context,
        "output": output,
        "input": context - output,
        "compact": context - output,
    }
    return Setup(agent, values)


def text_of(setup: Setup) -> str:
    """Return what a person reads: lines to paste into a shell, and the configuration file."""
    lines = [f"# {setup.agent.title} with {setup.values['model']} ({setup.values['context']} tokens of context)"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in setup.environment().items()]
    if setup.agent.file is not None:
        lines += [f"# in {setup.agent.file.usual}:", *(setup.file_text or "").splitlines()]
    lines += [f"# {note}" for note in setup.notes]
    if setup.agent.command:
        lines.append(shlex.join(setup.command()))
    return "\n".join(lines)


def json_of(setup: Setup) -> str:
    """Return the same for programs."""
    file = setup.agent.file
    return json.dumps(
        {
            "agent": setup.agent.title,
            "model": setup.values["model"],
            "context": setup.values["context"],
            "environment": setup.environment(),
            "file": None if file is None else {"path": file.usual, "text": setup.file_text},
            "command": setup.command(),
            "notes": setup.notes,
        },
        indent=2,
        ensure_ascii=False,
    )


def start(setup: Setup, arguments: tuple[str, ...]) -> int:
    """Run the agent with its environment, and with a configuration file in a folder of its own; return its exit status.

    Raises:
        ConfigError: it cannot be started from here.
        CaudalError: it is not installed.
    """
    agent = setup.agent
    if not agent.command or (agent.file is not None and not (agent.file_environment or agent.file_arguments)):
        message = f"{agent.title} cannot be started with these settings; leave --exec out and set them by hand"
        raise ConfigError(message)
    if shutil.which(agent.command[0]) is None:
        message = f"{agent.command[0]} is not installed, or not on PATH"
        raise CaudalError(message)
    for note in setup.notes:
        click.echo(f"caudal: {note}", err=True)
    with tempfile.TemporaryDirectory(prefix="caudal-launch-") as name:
        folder = None
        if agent.file is not None:
            folder = name
            Path(folder, agent.file.name).write_text(setup.file_text or "", encoding="utf-8")
        environment = {**os.environ, **setup.environment(folder)}
        done = subprocess.run([*setup.command(folder), *arguments], env=environment, check=False)  # noqa: S603 - asked for
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.argument("agent")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@server_options
@click.option("--model", metavar="NAME", help="Which of its models.  [default: the first]")
@click.option("--exec", "is_started", is_flag=True, help="Start the agent; ARGUMENTS after -- are its own.")
@json_option
def command(
    *,
    agent: str,
    arguments: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    model: str | None,
    is_started: bool,
    as_json: bool,
) -> int:
    """Show what AGENT needs to work with a running server.

    AGENT is claude, codex, opencode, qwen-code, pi, cline, continue, aider, vscode, zed or open-webui.
    """  # fmt: skip
    row = find_agent(agent)
    if arguments and not is_started:
        message = f"{arguments[0]!r} is for the agent, which is started with --exec only"
        raise ConfigError(message)
    server = RunningServer(server_url(url).removesuffix("/v1"), api_key)
    setup = setup_of(row, server.url, server.key, choose_model(served_models(server), model))
    if is_started:
        return start(setup, arguments)
    click.echo(json_of(setup) if as_json else text_of(setup))
    return 0
