"""`caudal launch`, with servers and agents that only pretend: the agents write down what they were given."""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys
import threading
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.cli import main
from caudal.cli.agents import AGENTS
from caudal.cli.launch import setup_of, text_of

MODELS = [
    {"id": "qwen2.5-coder", "max_model_len": 32768},
    {"id": "org/other:tag", "context_length": 8192},
    {"id": "sleeping", "max_model_len": None},
]
DUMP = """#!{python}
import json, os, sys
folder = os.environ.get("CODEX_HOME") or os.environ.get("PI_CODING_AGENT_DIR")
files = [os.environ.get("OPENCODE_CONFIG"), *sys.argv[1:]]
if folder:
    files += [os.path.join(folder, name) for name in os.listdir(folder)]
texts = [open(name).read() for name in files if name and os.path.isfile(name)]
with open({out!r}, "w") as out:
    json.dump({{"environment": dict(os.environ), "arguments": sys.argv[1:], "files": texts}}, out)
sys.exit(7)
"""


@pytest.fixture
def server():
    """A server that lists MODELS to whoever has the key `sesame`, or to all while it is None."""

    class Handler(http.server.BaseHTTPRequestHandler):
        key = None
        answer = json.dumps({"object": "list", "data": MODELS}).encode()

        def do_GET(self):
            allowed = self.key is None or self.headers.get("authorization") == f"Bearer {self.key}"
            status = (200 if self.path == "/v1/models" else 404) if allowed else 401
            self.send_response(status)
            self.end_headers()
            self.wfile.write(self.answer if status == 200 else b"{}")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        Handler.url = f"http://127.0.0.1:{listener.server_port}"
        yield Handler
        listener.shutdown()
        thread.join()


@pytest.fixture
def launch(server, capsys, monkeypatch):
    monkeypatch.delenv("CAUDAL_API_KEY", raising=False)

    def run(*arguments, url=None):
        status = main.run(["launch", "--url", url or server.url, *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a program on PATH that writes down what it was given; return a reader of that."""
    out = tmp_path / "seen.json"

    def install(name):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(DUMP.format(python=sys.executable, out=str(out)))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)

    def seen():
        return json.loads(out.read_text())

    install.seen = seen
    return install


def test_claude_gets_its_variables(launch, server):
    status, out, _ = launch("claude", "--json")
    assert status == 0
    found = json.loads(out)
    environment = found["environment"]
    assert environment["ANTHROPIC_BASE_URL"] == server.url
    assert environment["ANTHROPIC_MODEL"] == environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "qwen2.5-coder"
    assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "32768"
    assert environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "8192"
    assert environment["ANTHROPIC_AUTH_TOKEN"]
    assert found["command"] == ["claude"]


def test_lines_for_a_shell(launch, server):
    status, out, _ = launch("qwen-code")
    assert status == 0
    assert f"export OPENAI_BASE_URL={server.url}/v1\n" in out
    assert out.splitlines()[-1] == "qwen --auth-type openai"


@pytest.mark.parametrize("url", ["{}/", "{}/v1", "{}/v1/"])
def test_the_url_may_be_written_in_any_way(launch, server, url):
    _, out, _ = launch("qwen-code", "--json", url=url.format(server.url))
    assert json.loads(out)["environment"]["OPENAI_BASE_URL"] == f"{server.url}/v1"


@pytest.mark.parametrize(("model", "context"), [("org/other:tag", 8192), ("sleeping", 32768)])
def test_another_model(launch, model, context):
    _, out, _ = launch("codex", "--model", model, "--json")
    found = json.loads(out)
    assert (found["model"], found["context"]) == (model, context)
    assert tomllib.loads(found["file"]["text"])["model_context_window"] == context


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_told_where_and_what(launch, server, name):
    status, out, _ = launch(name)
    assert status == 0
    assert server.url in out
    assert "qwen2.5-coder" in out
    assert "{model" not in out
    assert "{base" not in out


@pytest.mark.parametrize("name", [name for name, agent in AGENTS.items() if agent.command])
def test_exec_starts_the_agent(launch, fake, server, name):
    agent = AGENTS[name]
    fake(agent.command[0])
    status, _, err = launch(name, "--exec", "--api-key", "sesame", "--", "-p", "hello there")
    if agent.file is not None and not (agent.file_environment or agent.file_arguments):
        assert status == main.MISUSED
        assert "by hand" in err
        return
    assert status == 7  # the agent's own
    seen = fake.seen()
    assert seen["arguments"][-2:] == ["-p", "hello there"]
    for variable in agent.environment:
        assert variable in seen["environment"]
    everything = json.dumps([seen["environment"], seen["arguments"], seen["files"]])
    if name != "cline":  # keeps what its own `auth` was told, in its own place
        assert server.url in everything
        assert "sesame" in everything
        assert "qwen2.5-coder" in everything
    assert len(seen["files"]) == (agent.file is not None)


def test_codex_finds_a_configuration_that_is_gone_afterwards(launch, fake, server):
    fake("codex")
    launch("codex", "--exec")
    seen = fake.seen()
    config = tomllib.loads(seen["files"][0])
    provider = config["model_providers"][config["model_provider"]]
    assert provider["wire_api"] == "responses"
    assert provider["base_url"] == f"{server.url}/v1"
    assert seen["environment"][provider["env_key"]]
    assert not os.path.exists(seen["environment"]["CODEX_HOME"])  # noqa: PTH110


def test_files_are_what_their_agents_parse(launch):
    for name in ("opencode", "pi", "aider", "vscode", "zed"):
        _, out, _ = launch(name, "--json")
        json.loads(json.loads(out)["file"]["text"])
    opencode = json.loads(json.loads(launch("opencode", "--json")[1])["file"]["text"])
    (models,) = [provider["models"] for provider in opencode["provider"].values()]
    assert models["qwen2.5-coder"]["limit"] == {"context": 32768, "output": 8192}
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: runs where it is")
    file = yaml.safe_load(json.loads(launch("continue", "--json")[1])["file"]["text"])
    assert file["models"][0]["defaultCompletionOptions"] == {"contextLength": 32768, "maxTokens": 8192}


@given(name=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1))
def test_any_model_name_survives(name):
    model = {"id": name, "max_model_len": 4096}
    texts = {agent: setup_of(AGENTS[agent], "http://h:1", 'k"\\', model) for agent in AGENTS}
    assert tomllib.loads(texts["codex"].file_text)["model"] == name
    assert json.loads(texts["zed"].file_text)["agent"]["default_model"]["model"] == name
    assert json.loads(texts["opencode"].file_text)["model"] == f"caudal/{name}"
    assert list(json.loads(texts["aider"].file_text)) == [f"openai/{name}"]
    assert json.loads(texts["vscode"].file_text)["apiKey"] == 'k"\\'
    assert all(text_of(setup) for setup in texts.values())


def test_unknown_agents(launch):
    status, _, err = launch("cluade")
    assert status == main.MISUSED
    assert "did you mean 'claude'?" in err
    assert "known ones are claude, codex" in launch("xyzzy")[2]


def test_no_server(launch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    status, out, err = launch("claude", url=f"http://127.0.0.1:{port}")
    assert (status, out) == (main.FAILED, "")
    assert err.count("\n") == 1
    assert "caudal serve MODEL" in err


@pytest.mark.parametrize(
    ("url", "words"), [("127.0.0.1:8000", "expected one like"), ("ftp://x", "the server's address is")]
)
def test_what_is_no_url(launch, url, words):
    status, _, err = launch("claude", url=url)
    assert status == main.MISUSED
    assert words in err


@pytest.mark.parametrize("answer", [b"[]", b"<html>", b'{"data": []}'])
def test_another_kind_of_server(launch, server, answer):
    server.answer = answer
    status, _, err = launch("claude")
    assert status == main.FAILED
    assert err.count("\n") == 1


def test_the_key(launch, server, monkeypatch):
    server.key = "sesame"
    status, _, err = launch("claude")
    assert status == main.FAILED
    assert "--api-key" in err
    _, out, _ = launch("claude", "--api-key", "sesame", "--json")
    assert json.loads(out)["environment"]["ANTHROPIC_AUTH_TOKEN"] == "sesame"
    monkeypatch.setenv("CAUDAL_API_KEY", "sesame")
    assert launch("claude")[0] == 0


def test_unknown_models_missing_programs_and_stray_arguments(launch, monkeypatch):
    status, _, err = launch("claude", "--model", "qwen-coder")
    assert status == main.MISUSED
    assert "did you mean 'qwen2.5-coder'?" in err
    assert "it has qwen2.5-coder" in launch("claude", "--model", "zzz")[2]
    monkeypatch.setenv("PATH", "/nonexistent")
    status, _, err = launch("claude", "--exec")
    assert status == main.FAILED
    assert "claude is not installed" in err
    status, _, err = launch("claude", "--", "-p")
    assert status == main.MISUSED
    assert "--exec" in err
