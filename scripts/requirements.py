"""Print the requirements of an extra, one a line, so that they can be installed without the package itself.

    python scripts/requirements.py EXTRA

pyproject.toml stays the only place that names versions.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Read the extra named on the command line; "build" is what compiling the native module needs."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    (name,) = sys.argv[1:]
    if name == "build":
        lines = [*project["build-system"]["requires"], "cmake>=3.18", "ninja>=1.10"]
    else:
        lines = project["project"]["optional-dependencies"][name]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
