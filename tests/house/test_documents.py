"""Documents say what is so: generated pages, README's table and commands, and every file that a document names."""

import os
import re
import shlex
import subprocess
import sys

import click
import pytest
from source_tree import ROOT, tracked_files

from caudal.cli.main import VERBS, cli

DOCUMENTS = tuple(path for path in tracked_files(".md") if "results" not in path.parts)
READMES = ("README.md", "README.es.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
# Names in backticks that look like files. x stands for a file to be written; a room's files are under src/caudal.
NAMED_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+|[A-Z]\w*\.(?:md|toml|txt))`")
PLACEHOLDER = re.compile(r"(^|/)x(_\w+)?\.\w+$")
ROOMS = {path.name for path in (ROOT / "src" / "caudal").iterdir() if path.is_dir()}
TOP = {"src", "native", "tests", "bench", "docs", "scripts", "examples"}


def exists(name):
    """Whether a file named in a document exists; true for what is no file's name."""
    room = name.split("/")[0]
    if PLACEHOLDER.search(name) or (room not in ROOMS | TOP and "/" in name):
        return True
    return (ROOT / name).exists() or (ROOT / "src" / "caudal" / name).exists()


def run(*command):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, env=environment, check=False)  # fmt: skip # noqa: E501


def test_generated_pages_are_fresh():
    done = run("scripts/generate_docs.py", "--check")
    assert done.returncode == 0, done.stderr


def test_readme_table_is_that_of_the_results():
    done = run("bench/report.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(document):
    text = document.read_text()
    missing = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    missing += [name for name in NAMED_PATH.findall(text) if not exists(name)]
    assert not missing, missing


def shell_commands(readme):
    """Every command of the README's `sh` blocks, continued lines joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / readme).read_text(), re.MULTILINE | re.DOTALL):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line.strip())


def make_targets():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_caudal(words):
    """Parse a `caudal` command line with the real options, without running it."""
    verb, *arguments = words
    assert verb in VERBS
    command = cli.get_command(None, verb)
    command.make_context(f"caudal {verb}", list(arguments), parent=click.Context(cli, info_name="caudal"))


@pytest.mark.parametrize("readme", READMES)
def test_readme_commands_are_real(readme):
    commands = list(shell_commands(readme))
    assert commands[:2] == ["make run", "make test"]
    for command in commands:
        program, *words = shlex.split(command)
        if program == "make":
            assert words[0] in make_targets(), command
        elif program == "caudal":
            check_caudal(words)
        else:
            assert program == "curl", f"{command}: teach this test to check it"


def test_both_readmes_show_the_same_commands():
    english, spanish = ([c for c in shell_commands(r) if not c.startswith("curl")] for r in READMES)
    assert english == spanish


def test_readme_python_compiles():
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
