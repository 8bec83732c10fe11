"""What clients may call the models of a folder. Pure.

A model is listed as its file is called, without `.gguf`; see model_files. So a name must be good as a path below the
folder, and be read back as it was given.
"""

from __future__ import annotations

import re

from caudal.errors import ConfigError, LibraryError
from caudal.hub.pull import read_name
from caudal.hub.resolve import SHARD

MAX_NAME_CHARS = 500
MAX_PART_BYTES = 200
"""A file's name has 255 on usual file systems; the ends of shards and of temporary names need some of them."""

_PLACE = re.compile(r"(?:www\.)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_LATEST = ":latest"
_SHOWN_CHARS = 80


def copy_name(name: str) -> str:
    """Return what a copy is listed as when a client has asked for a name: the same without ":latest".

    Raises:
        LibraryError: no model can be called so; reason "name".
    """
    plain = _without_tag(name)
    if "/" in plain:
        raise _refused(name, "it holds a path separator")
    return checked_name(plain)


def pulled_name(name: str) -> str:
    """Return what a pulled model is listed as: what was asked for, without ":latest" and without a page's address.

    Raises:
        LibraryError: it is no name of a model on the hub, or no file can be called so; reason "name".
    """
    if len(name) > MAX_NAME_CHARS:
        raise _refused(name, f"it is longer than {MAX_NAME_CHARS} characters")
    try:
        wanted = read_name(name)
    except ConfigError as error:
        raise LibraryError(str(error), "name") from error
    place = _PLACE.match(name.strip())
    tail = f"/{wanted.file}" if wanted.file else f":{wanted.quant}" if wanted.quant else ""
    return checked_name(f"{place[0] if place else ''}{wanted.repo_id}{tail}")


def checked_name(name: str) -> str:
    """Return a name if a file below the folder can be called so, and is then listed under it.

    Raises:
        LibraryError: it cannot; reason "name".
    """
    *folders, last = name.split("/")
    problem = next((found for part in (*folders, last) if (found := _problem(part))), None)
    if problem is None and SHARD.search(last):
        problem = "it ends as the name of a shard does"
    if problem is None and last.lower().startswith("mmproj"):
        problem = "it begins with mmproj, as files do that are no models"
    if problem is None and len(name) > MAX_NAME_CHARS:
        problem = f"it is longer than {MAX_NAME_CHARS} characters"
    if problem is not None:
        raise _refused(name, problem)
    return name


def _problem(part: str) -> str | None:
    """Return why no file or folder may be called so; None if one may."""
    if not part.isprintable():  # also half a surrogate pair, and what changes the direction of writing
        return "it holds a character that cannot be shown"
    problems = {
        "it, or a part of it, is empty": not part,
        "it, or a part of it, begins with a dot": part.startswith("."),
        "it holds a path separator": "\\" in part,
        "it, or a part of it, begins or ends with a space": part != part.strip(),
        f"it, or a part of it, is longer than {MAX_PART_BYTES} bytes": len(part.encode()) > MAX_PART_BYTES,
    }
    return next((problem for problem, is_so in problems.items() if is_so), None)


def _without_tag(name: str) -> str:
    return name[: -len(_LATEST)] if name.lower().endswith(_LATEST) else name


def _refused(name: str, problem: str) -> LibraryError:
    shown = name if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]}..."
    return LibraryError(f"no model can be called {shown!r}: {problem}", "name")
