"""A pytest plugin for somebody else's tests: leaves out those on our list, and says at the end why.

The list is a TOML file named by PEER_LIST:

    [reasons]
    words = "asks for the words of a model that was not at hand"

    [[left_out]]
    reason = "words"
    tests = ["unit/test_x.py", "unit/test_x.py::test_y", "unit/test_x.py::test_y[2-False]"]

An entry is a file, a test with all its parameters, or one of its parameters; `*` and `?` in brackets stand for text. An
entry that names nothing is an error if its file is there, so that the list cannot go stale.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

LISTED = pytest.StashKey()


def read_list(path):
    """Return reasons by entry."""
    document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    reasons = document["reasons"]
    listed = {}
    for group in document["left_out"]:
        for entry in group["tests"]:
            if entry in listed:
                message = f"{entry} is listed twice"
                raise ValueError(message)
            listed[entry] = reasons[group["reason"]]
    return listed


def names(entry, node_id):
    """Whether an entry of the list names a test."""
    wanted_file, _, wanted = entry.partition("::")
    file, _, test = node_id.partition("::")
    if file != wanted_file:
        return False
    if not wanted:
        return True
    wanted_function, _, wanted_parameters = wanted.partition("[")
    function, _, parameters = test.partition("[")
    return function == wanted_function and (not wanted_parameters or fnmatchcase(parameters, wanted_parameters))


def entry_for(listed, node_id):
    """Return the entry that names a test, or None."""
    return next((entry for entry in listed if names(entry, node_id)), None)


def pytest_collection_modifyitems(config, items):
    """Leave out what is on the list, or, for PEER_SELECT=listed, everything else."""
    listed = read_list(os.environ["PEER_LIST"])
    only_listed = os.environ.get("PEER_SELECT") == "listed"
    used, kept, dropped = Counter(), [], []
    for item in items:
        entry = entry_for(listed, item.nodeid)
        used[entry] += 1
        (kept if (entry is not None) == only_listed else dropped).append(item)
    files = {item.nodeid.partition("::")[0] for item in items}
    stale = [entry for entry in listed if not used[entry] and "::" in entry and entry.partition("::")[0] in files]
    if stale and not os.environ.get("PEER_PART"):
        message = "these entries of the list name no test: " + ", ".join(stale)
        raise pytest.UsageError(message)
    config.stash[LISTED] = Counter(listed[entry] for entry in used.elements() if entry is not None)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def pytest_terminal_summary(terminalreporter, config):
    """Say how many tests were left out, by reason."""
    terminalreporter.section("tests on the list, by reason")
    for reason, count in config.stash.get(LISTED, Counter()).most_common():
        terminalreporter.line(f"{count:5d}  {reason}")
