"""`_native.pyi` says what the native module offers: no name more or less, the same parameters and defaults."""

import ast
import re
from pathlib import Path

import pytest

STUB = Path(__file__).parents[2] / "src" / "caudal" / "_native.pyi"
native = pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)


def stub_signatures():
    """Return name -> parameter names and how many have defaults; None for a property."""
    found = {}

    def add(prefix, body):
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = None
                add(f"{prefix}{node.name}.", node.body)
            elif isinstance(node, ast.FunctionDef):
                is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
                names = [argument.arg for argument in node.args.args]
                found[prefix + node.name] = None if is_property else (names, len(node.args.defaults))

    add("", ast.parse(STUB.read_text()).body)
    return found


def native_signatures():
    """Return the same of the module, from the signatures that nanobind keeps."""
    found = {}

    def add(prefix, owner):
        for name, value in vars(owner).items():
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(value, type):
                found[prefix + name] = None
                add(f"{prefix}{name}.", value)
            elif isinstance(value, property):
                found[prefix + name] = None
            elif hasattr(value, "__nb_signature__"):
                text, _, defaults = value.__nb_signature__[0]
                inside = text[text.index("(") + 1 : text.rindex(")")]
                found[prefix + name] = (re.findall(r"(?:^|, )(\w+)(?=[:,]|$)", inside), len(defaults or ()))

    add("", native)
    return found


def test_the_stub_is_that_of_the_module():
    assert stub_signatures() == native_signatures()
