"""Files and classes are named for what they are."""

import ast
import re
from collections import Counter

from source_tree import ROOT, python_files, tracked_files, tree_of

FORBIDDEN_FILES = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)(_|$)")
FORBIDDEN_CLASSES = re.compile(r"^Base[A-Z]|Mixin$|Impl$|Manager$|Helper$|Utils?$")


def test_no_file_is_named_for_nothing():
    code = tracked_files(".py", ".cpp", ".h", ".sh")
    wrong = [str(p.relative_to(ROOT)) for p in code if any(FORBIDDEN_FILES.search(part) for part in (*p.relative_to(ROOT).parts[:-1], p.stem))]  # fmt: skip # noqa: E501
    assert not wrong, wrong


def test_no_class_is_named_for_its_place_in_a_hierarchy():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and FORBIDDEN_CLASSES.search(node.name)
    ]
    assert not wrong, wrong


def test_test_files_have_unique_names():
    """Tests have no packages, so pytest imports them by their bare names."""
    names = Counter(path.name for path in tracked_files(".py") if path.is_relative_to(ROOT / "tests"))
    assert not [name for name, count in names.items() if count > 1 and name != "conftest.py"]
