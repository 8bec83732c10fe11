"""Who may import whom: DESIGN's rule as a test. Imports under TYPE_CHECKING and inside functions count too."""

import sys

import pytest
from source_tree import PACKAGE, imports_of, module_name, module_names, python_files

OPEN = ("caudal", "caudal.vectors", "caudal.errors", "caudal.config", "caudal.sampling_params", "caudal.messages")

# room -> what of ours it may import beside itself. A name allows the module and everything below it.
ROOMS = {
    "errors": (),
    "vectors": (),
    "config": ("caudal.errors",),
    "sampling_params": ("caudal.errors",),
    "messages": ("caudal.errors", "caudal.sampling_params"),
    "core": ("caudal.errors", "caudal.sampling_params"),
    "quant": ("caudal.errors",),
    "checkpoint": ("caudal.errors", "caudal.quant"),
    "models": (*OPEN, "caudal.backends.base", "caudal.checkpoint"),
    "backends": (*OPEN, "caudal._native", "caudal.quant", "caudal.checkpoint", "caudal.engine.step_batch"),
    "constrain": ("caudal.errors",),
    "engine": (
        *OPEN,
        "caudal.constrain",
        "caudal.core",
        "caudal.models",
        "caudal.backends",
        "caudal.checkpoint",
        "caudal.quant",
    ),
    "tokenizer": (*OPEN, "caudal.checkpoint"),
    "tools": ("caudal.errors",),
    "hub": (*OPEN, "caudal.checkpoint"),
    "server": (*OPEN, "caudal.engine.engine_client", "caudal.tokenizer", "caudal.constrain", "caudal.tools"),
}
COMPOSE = ("cli", "llm", "server.launch", "__init__")

# A third-party package (or a part of ours) and the only rooms that may import it.
ONLY_IN = {
    "caudal._native": ("backends.cpu",),
    "torch": ("backends.torch",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "prometheus_client": ("server",),
    "opentelemetry": ("server.tracing",),
    "tokenizers": ("tokenizer",),
    "jinja2": ("tokenizer",),
    "click": ("cli",),
    "huggingface_hub": ("hub",),
    "llguidance": ("constrain",),
    "numpy": ("quant", "checkpoint", "backends", "engine"),
}
# Standard modules by which a room that must not touch files would touch them.
NO_FILES = {"models", "quant", "core"}
FILE_MODULES = {"os", "io", "pathlib", "mmap", "shutil", "tempfile"}
# The sans-IO heart: no clock, no threads, no randomness.
NOT_IN_CORE = FILE_MODULES | {"time", "random", "threading", "asyncio", "socket", "subprocess", "multiprocessing"}


def inside(module, room):
    return module == room or module.startswith(f"{room}.")


def name_in_house(path):
    return module_name(path).removeprefix("caudal").removeprefix(".") or "__init__"


def each_import():
    for path in python_files():
        for found in imports_of(path):
            yield path, name_in_house(path), found


def test_every_room_has_a_rule():
    rooms = {name_in_house(path).split(".")[0] for path in python_files()}
    assert rooms <= {*ROOMS, *COMPOSE}, "a new room needs a row in ROOMS"


def test_rooms_import_only_what_they_may():
    wrong = []
    for path, name, found in each_import():
        if not inside(found.module, "caudal") or any(inside(name, room) for room in COMPOSE):
            continue
        room = name.split(".")[0]
        allowed = (f"caudal.{room}", *ROOMS[room])
        exact = {"caudal"}  # importing the package itself is not importing all of it
        if not any(found.module == a if a in exact else inside(found.module, a) for a in allowed):
            wrong.append(f"{path.relative_to(PACKAGE)}:{found.line} imports {found.module}")
    assert not wrong, "\n".join(wrong)


def test_the_composers_alone_are_imported_by_nobody():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{found.line} imports {found.module}"
        for path, name, found in each_import()
        if inside(found.module, "caudal.cli") and not inside(name, "cli")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ONLY_IN)
def test_package_is_imported_only_in_its_rooms(package):
    wrong = [
        f"{path.relative_to(PACKAGE)}:{found.line} imports {found.module}"
        for path, name, found in each_import()
        if inside(found.module, package) and not any(inside(name, room) for room in ONLY_IN[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_core_imports_the_standard_library_alone():
    wrong = [
        f"core/{path.name}:{found.line} imports {found.module}"
        for path, name, found in each_import()
        if inside(name, "core")
        and not inside(found.module, "caudal")
        and (found.module.split(".")[0] not in sys.stdlib_module_names or found.module.split(".")[0] in NOT_IN_CORE)
    ]
    assert not wrong, "\n".join(wrong)


def test_models_quant_and_core_touch_no_files():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{found.line} imports {found.module}"
        for path, name, found in each_import()
        if name.split(".")[0] in NO_FILES and found.when != "typing" and found.module.split(".")[0] in FILE_MODULES
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles():
    """Imports at module level form no circle, packages' __init__ included."""
    graph = {
        module_name(path): {i.module for i in imports_of(path) if i.when == "import" and i.module in module_names()}
        for path in python_files()
    }
    done, path = set(), []

    def visit(module):
        assert module not in path, f"import cycle: {' -> '.join([*path[path.index(module) :], module])}"
        if module in done or module not in graph:
            return
        path.append(module)
        for imported in sorted(graph[module] - {module}):
            visit(imported)
        path.pop()
        done.add(module)

    for module in sorted(graph):
        visit(module)
