"""Files <= 500 lines, functions <= 60 lines and <= 8 parameters. Exceptions live in exceptions.toml with a reason."""

import ast
import re
import tomllib
from pathlib import Path

from source_tree import ROOT, tracked_files, tree_of

LIMITS = {"file": 500, "function": 60, "parameters": 8}
EXCEPTIONS = tomllib.loads(Path(__file__).with_name("exceptions.toml").read_text()).get("exception", [])
CODE = (".py", ".cpp", ".h", ".sh")
# clang-format puts a function's first line and its closing brace into column 0.
CPP_FUNCTION = re.compile(r"^(?!namespace|struct|class|enum|union|extern|#|//)[A-Za-z].*\b(\w+)\(.*$")


def python_sizes(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            yield "function", node.name, node.end_lineno - node.lineno + 1
            yield "parameters", node.name, len([name for name in names if name not in ("self", "cls")])


def cpp_sizes(path):
    start, name = 0, ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = CPP_FUNCTION.match(line)
        if match:
            start, name = number, match[1]
        elif line == "}" and start:
            yield "function", name, number - start + 1
            start = 0


def sizes():
    """(path, budget, name, size) of everything that has a budget."""
    for path in tracked_files(*CODE):
        relative = str(path.relative_to(ROOT))
        yield relative, "file", "", len(path.read_text().splitlines())
        found = python_sizes(path) if path.suffix == ".py" else cpp_sizes(path)
        yield from ((relative, *row) for row in found)


def limit_of(path, budget, name):
    for row in EXCEPTIONS:
        if (row["path"], row["budget"], row.get("name", "")) == (path, budget, name):
            return row["limit"]
    return LIMITS[budget]


def test_budgets():
    over = [
        f"{path} {name}: {budget} {size}, budget {limit_of(path, budget, name)}"
        for path, budget, name, size in sizes()
        if size > limit_of(path, budget, name)
    ]
    assert not over, "\n".join(over)


def test_exceptions_are_needed_and_say_why():
    largest = {}
    for path, budget, name, size in sizes():
        key = (path, budget, name)
        largest[key] = max(size, largest.get(key, 0))
    for row in EXCEPTIONS:
        key = (row["path"], row["budget"], row.get("name", ""))
        assert row["reason"], key
        assert largest.get(key, 0) > LIMITS[row["budget"]], f"the exception {key} is no longer needed"


def test_the_cpp_ruler_measures(tmp_path):
    """A ruler that finds nothing would pass every file."""
    source = tmp_path / "x.cpp"
    source.write_text(
        "namespace a {\nvoid f(int x,\n       int y) {\n  g();\n}\nint h() { return 1; }\n}  // namespace a\n"
    )
    assert list(cpp_sizes(source)) == [("function", "f", 4)]
    assert sum(1 for path in tracked_files(".cpp", ".h") for _ in cpp_sizes(path)) > 10
