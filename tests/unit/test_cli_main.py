"""The command line's frame: verbs, exit statuses, one-line errors."""

import io
import json
import os
import subprocess
import sys

import click
import pytest

from caudal import __version__
from caudal.cli import main
from caudal.cli.options import _model_first
from caudal.errors import CheckpointError, ConfigError


def run(capsys, *arguments):
    status = main.run(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_version(capsys):
    assert run(capsys, "version") == (0, f"caudal {__version__}\n", "")


def test_help_lists_every_verb(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(f"  {name} " in out for name in main.VERBS)


@pytest.mark.parametrize("verb", main.VERBS)
def test_summary_is_the_commands_own_first_line(verb):
    """The table that lets help stay quick must not drift from the commands."""
    command = main.cli.get_command(None, verb)
    own = command.help.strip().splitlines()[0]
    assert own.split()[0] == main.VERBS[verb].summary.split()[0]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["frob"], "No such command 'frob'"),
        (["serv"], "there is no verb 'serv'; the nearest is 'serve'"),
        (["lsit", "x"], "there is no verb 'lsit'; the nearest is 'list'"),
        (["show"], "Missing argument 'MODEL'"),
        (["show", "--frob", "x"], "--frob"),
        (["bench", "x", "-b", "8,x"], "expected whole numbers"),
        (["bench", "x", "-p", "0", "-n", "0", "-b", ""], "no test"),
        (["run", "x", "--temperature", "warm", "hi"], "'warm'"),
        (["run", "x", "--top-p", "2", "hi"], "top_p is 2.0; expected a number from"),
        (["serve", "x", "--kv-cache-dtype", "fp8"], "'fp8' is not one of 'auto', 'f16', 'int8'"),
    ],
)
def test_misuse_is_one_line_and_status_2(capsys, monkeypatch, arguments, fact):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("caudal: ")
    assert fact in err
    assert err.count("\n") == 1


def test_a_model_that_is_not_there_is_one_line_and_status_1(capsys):
    status, out, err = run(capsys, "show", "no/such/model.gguf")
    assert (status, out) == (1, "")
    assert err.startswith("caudal: no model 'no/such/model.gguf'")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CheckpointError("broken", path="x.gguf"), 1),
        (ConfigError("nonsense"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_errors_become_statuses(capsys, monkeypatch, error, status):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(main.cli, "main", fail)
    found, _, err = run(capsys, "version")
    assert found == status
    assert "Traceback" not in err


def test_a_reader_that_leaves_is_no_error():
    """`caudal show | head -1`: no traceback, not even at interpreter exit."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "caudal.cli.main", "run", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_list_json(capsys, monkeypatch, tmp_path):
    snapshot = tmp_path / "models--org--repo" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").write_bytes(b"x" * 2048)
    os.utime(snapshot / "m.gguf", (86400, 86400))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    status, out, _ = run(capsys, "list", "--json")
    assert status == 0
    assert {
        "name": "org/repo/m.gguf",
        "path": str(snapshot / "m.gguf"),
        "size_bytes": 2048,
        "modified": "1970-01-02T00:00:00+00:00",
    } in json.loads(out)
    _, table, _ = run(capsys, "list")
    assert "org/repo/m.gguf" in table
    assert "2.0 KiB" in table
    assert "years ago" in table


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a.gguf", "hi"], ["a.gguf", "hi"]),
        (["-m", "a.gguf", "hi"], ["a.gguf", "hi"]),
        (["--seed", "1", "-m", "a.gguf", "hi"], ["a.gguf", "--seed", "1", "hi"]),
        (["hi", "--model=a.gguf"], ["a.gguf", "hi"]),
        (["a.gguf", "--", "-m", "is text"], ["a.gguf", "--", "-m", "is text"]),
    ],
)
def test_m_stands_for_the_model_argument(given, expected):
    assert _model_first(given) == expected
