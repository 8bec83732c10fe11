"""The launcher and the list by which llama.cpp's own tests run against Caudal."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from caudal.cli.main import cli

PEERS = Path(__file__).parents[1] / "peers"
sys.path.append(str(PEERS))
from llama_server_shim import translate  # noqa: E402 - the folder is no package
from peer_selection import names, read_list  # noqa: E402 - the same

sys.path.pop()
MODELS = {"LLAMA_SHIM_CHAT": "chat.gguf", "LLAMA_SHIM_EMBEDDING": "embedding.gguf", "LLAMA_SHIM_RERANKER": "rank.gguf"}


def options_of(*arguments):
    options, left_out = translate(list(arguments), MODELS)
    context = cli.get_command(None, "serve").make_context("serve", list(options))  # as the real command reads them
    return context.params, left_out


def test_the_context_is_divided_between_slots_unless_it_is_unified():
    assert options_of("--ctx-size", "512", "--parallel", "2")[0]["max_model_len"] == 256
    assert options_of("-c", "512", "-np", "2", "-kvu")[0]["max_model_len"] == 512
    assert options_of("-np", "3")[0]["max_num_seqs"] == 3
    assert options_of("--batch-size", "2", "-np", "8")[0]["max_num_batched_tokens"] == 8


def test_keys_names_and_addresses_are_kept():
    values, left_out = options_of("--api-key", "a,b", "--alias", "two,one", "--host", "0.0.0.0,::1", "--port", "81")
    assert (values["api_keys"], values["host"], values["port"]) == (("a", "b"), "0.0.0.0", 81)
    assert values["names"][:2] == ("one", "two")
    assert not left_out
    assert options_of("--host", "0.0.0.0")[0]["insecure_no_key"] is True


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["--hf-repo", "x/y", "--hf-file", "z.gguf"], "chat.gguf"),
        (["--embedding"], "embedding.gguf"),
        (["--reranking"], "rank.gguf"),
    ],
)
def test_a_file_at_hand_stands_for_the_model(arguments, model):
    assert options_of(*arguments)[0]["models"] == (model,)


def test_what_caudal_lacks_is_named():
    _, left_out = options_of("--lora", "x.gguf", "--sleep-idle-seconds", "1", "--jinja", "--no-slots", "--temp", "0.8")
    assert left_out == ["--lora x.gguf", "--sleep-idle-seconds 1", "--no-slots"]


def test_the_launcher_runs_by_itself():
    environment = {**MODELS, "LLAMA_SHIM_DRY_RUN": "1", "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        [sys.executable, PEERS / "llama_server_shim.py", "--port", "99", "--tools", "all"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--tools all" in done.stderr
    with pytest.raises(click.exceptions.ClickException):
        options_of("--port", "none")
    assert json.loads(done.stdout)[0] == "chat.gguf"


@pytest.mark.parametrize(
    ("entry", "test", "expected"),
    [
        ("unit/a.py", "unit/a.py::test_x[1]", True),
        ("unit/a.py", "unit/ab.py::test_x", False),
        ("unit/a.py::test_x", "unit/a.py::test_x[1]", True),
        ("unit/a.py::test_x", "unit/a.py::test_xy", False),
        ("unit/a.py::test_x[1-*]", "unit/a.py::test_x[1-True]", True),
        ("unit/a.py::test_x[1-*]", "unit/a.py::test_x[2-True]", False),
        ("unit/a.py::test_x[1]", "unit/a.py::test_x", False),
    ],
)
def test_entries_name_files_tests_and_parameters(entry, test, expected):
    assert names(entry, test) is expected


def test_the_list_is_well_formed_and_every_reason_is_used(tmp_path):
    listed = read_list(PEERS / "llama_cpp_tests.toml")
    assert len(listed) > 50
    document = tomllib.loads((PEERS / "llama_cpp_tests.toml").read_text())
    assert set(document["reasons"].values()) == set(listed.values())
    twice = tmp_path / "x.toml"
    twice.write_text('[reasons]\nr = "x"\n[[left_out]]\nreason = "r"\ntests = ["a.py", "a.py"]\n')
    with pytest.raises(ValueError, match="twice"):
        read_list(twice)
