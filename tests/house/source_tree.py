"""What the house tests share: the files of the checkout, parsed once a test session."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "caudal"


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        module: the dotted name; `from a import b` gives a.b when that is a module of ours, else a.
        line: where.
        when: "import" at module level, "typing" under TYPE_CHECKING, "call" inside a function.
    """

    module: str
    line: int
    when: str


@cache
def python_files() -> tuple[Path, ...]:
    """Every Python file of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def tracked_files(*suffixes: str) -> tuple[Path, ...]:
    """Files of the checkout that git tracks or would track, with one of these suffixes."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = {ROOT / name for name in names if name.endswith(suffixes)}
    return tuple(sorted(path for path in paths if path.exists()))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def module_names() -> frozenset[str]:
    return frozenset(module_name(path) for path in python_files()) | {"caudal._native"}


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    found: list[Import] = []
    _walk(tree_of(path), "import", path, found)
    return tuple(found)


def _walk(node: ast.AST, when: str, path: Path, found: list[Import]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = when
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = "call"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            inner = "typing"
        elif isinstance(child, ast.Import):
            found.extend(Import(alias.name, child.lineno, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, path)
            for alias in child.names:
                full = f"{base}.{alias.name}"
                found.append(Import(full if full in module_names() else base, child.lineno, when))
        _walk(child, inner, path, found)


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return node.module or ""
    parts = module_name(path).split(".")
    parts = parts if path.name == "__init__.py" else parts[:-1]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)
