"""No module-level mutable state.

A table in capitals is a constant as long as nobody changes it; anything else that is mutable, every `global`, and
every change to a module-level container is refused.
"""

import ast

import pytest
from source_tree import PACKAGE, python_files, tree_of

MUTABLE_NODES = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CALLS = {"list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter", "Lock"}
CHANGES = {"append", "add", "update", "pop", "popitem", "setdefault", "clear", "extend", "insert", "remove", "discard"}


def module_names_of(tree):
    """Name -> value of every simple assignment at module level."""
    names = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []  # fmt: skip # noqa: E501
        names.update({target.id: node for target in targets if isinstance(target, ast.Name)})
    return names


def is_mutable(value):
    if isinstance(value, ast.Call):
        function = value.func
        called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        return called in MUTABLE_CALLS
    return isinstance(value, MUTABLE_NODES)


def local_names(function):
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}


def changed_name(node):
    """The name of the container that this node changes, if it does."""
    target = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        target = node.func.value
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        target = node.value
    return target.id if isinstance(target, ast.Name) else None


def violations(tree):
    names = module_names_of(tree)
    for name, node in names.items():
        constant = name.strip("_").isupper() or name == "__all__"
        if is_mutable(node.value) and not constant:
            yield node.lineno, f"{name} is mutable; make it a tuple, a frozenset or a constant in capitals"
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        hidden = local_names(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield node.lineno, f"global {', '.join(node.names)}"
            name = changed_name(node)
            if name in names and name not in hidden:
                yield node.lineno, f"{function.name} changes the module's {name}"


def test_no_module_level_mutable_state():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} {what}"
        for path in python_files()
        for line, what in violations(tree_of(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    ["cache = {}", "seen: set[int] = set()", "A = {}\ndef f(k):\n    A[k] = 1", "A = []\ndef f():\n    A.append(1)",
     "n = 0\ndef f():\n    global n\n    n += 1"],
)  # fmt: skip
def test_the_rule_sees_state(source):
    assert list(violations(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["TABLE = {1: 2}", "__all__ = ['a']", "A = {}\ndef f(A):\n    A[1] = 2", "names = ('a', 'b')"]
)
def test_the_rule_leaves_constants_alone(source):
    assert not list(violations(ast.parse(source)))
