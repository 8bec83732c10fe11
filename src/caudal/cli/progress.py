"""A line on the terminal while a model loads."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caudal.llm import LLM

CLEAR_LINE = "\r\033[K"


@contextmanager
def loading(model: str, *, show: bool) -> Iterator[Callable[[dict[str, Any]], LLM]]:
    """Give a function that loads `model` with engine options; a line says so meanwhile if `show`."""

    def load(options: dict[str, Any]) -> LLM:
        from caudal.config import check_environment  # noqa: PLC0415 - the line comes first, imports take a moment
        from caudal.hub.resolve import resolve  # noqa: PLC0415
        from caudal.llm import LLM  # noqa: PLC0415

        check_environment()
        return LLM(resolve(model), **options)

    if show:
        sys.stderr.write(f"loading {model} …")
        sys.stderr.flush()
    try:
        yield load
    finally:
        if show:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
