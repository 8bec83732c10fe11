"""`--chat-template`: another chat template than the model file's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from caudal.cli.options import Decorator

_MAX_BYTES = 4 << 20


def read_template(given: str) -> str:
    """Return the jinja2 source that a value of the option means: its own text, "chatml", or a file's.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it is no template.
    """
    from caudal.errors import ConfigError, TemplateError  # noqa: PLC0415 - help needs neither these nor jinja2
    from caudal.tokenizer.chat_template import CHATML, ChatTemplate  # noqa: PLC0415

    if given == "chatml":
        return CHATML
    source = given if "{" in given else _file_text(Path(given).expanduser())
    if "{" not in source:
        message = f"--chat-template is {given!r}, which holds no jinja2 template; expected text with {{{{ messages }}}}"
        raise ConfigError(message)
    try:
        ChatTemplate(source).check()
    except TemplateError as error:
        message = f"--chat-template: {error}"
        raise ConfigError(message) from error
    return source


def _file_text(path: Path) -> str:
    from caudal.errors import ConfigError  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode()
    except OSError as error:
        reason = error.strerror or str(error)
        message = (
            f"--chat-template is {str(path)!r}, which is no file that can be read: {reason}; give a file of a "
            "jinja2 template, its text, or chatml"
        )
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"--chat-template is {str(path)!r}, which is not UTF-8 text; give a file of a jinja2 template"
        raise ConfigError(message) from error


def _read(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    return None if given is None else read_template(given)


def template_option(whose: str) -> Decorator:
    """Return the option for a verb; `whose` says which model's template is meant."""
    return click.option(
        "--chat-template",
        "--chat-template-file",
        "chat_template",
        metavar="FILE",
        callback=_read,
        help=f"Chat template that takes the place of {whose}: a file, jinja2 text, or chatml.",
    )
