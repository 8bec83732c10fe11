"""`caudal keys …`: make, list, change, rotate and revoke API keys, and show what they used.

Works on the state directory itself; a server that runs on it sees every change with its next request. Changes are
written into the audit log.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from caudal.cli.main import complain
from caudal.cli.options import chain, json_option
from caudal.cli.state_options import chosen_state_dir, state_dir_option
from caudal.errors import InvalidParameter
from caudal.server.audit.key_changes import write_key_change
from caudal.server.keys.key import LIMITS, SCOPES, Key, KeyFields
from caudal.server.keys.key_store import CreatedKey, KeyStore
from caudal.server.keys.usage import COUNTS, UsageRow, read_usage
from caudal.server.keys.usage_export import usage_csv

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,6})([mhdw])")

# fmt: off
field_options = chain(
    click.option("--department", metavar="TEXT", help="Whose it is, for reports."),
    click.option("--scope", "scopes", multiple=True, type=click.Choice(SCOPES),
                 help="What it opens; inference unless said otherwise. May be repeated."),
    click.option("--allow-model", "models", multiple=True, metavar="PATTERN",
                 help="Name of a model that it may use; * and ? stand for letters; all unless said otherwise. May be "
                 "repeated."),
    click.option("--requests-per-minute", "--rpm", metavar="N", help="Most requests in a minute; none is no limit."),
    click.option("--tokens-per-minute", "--tpm", metavar="N", help="Most tokens of prompts and answers in a minute."),
    click.option("--requests-per-day", "--rpd", metavar="N", help="Most requests in a day of UTC."),
    click.option("--tokens-per-day", "--tpd", metavar="N", help="Most tokens in a day of UTC."),
    click.option("--max-parallel", metavar="N", help="Most requests at a time."),
    click.option("--priority", type=int, help="Of its requests: smaller is more urgent; 0 unless said otherwise."),
    click.option("--expires", metavar="WHEN",
                 help="When it ends: in 12h, 30d or 8w, or on a day (2027-01-31, UTC); none is never."),
)
days_options = chain(
    click.option("--from", "first", metavar="DAY", default="0000-00-00", help="First day, YYYY-MM-DD (UTC)."),
    click.option("--to", "last", metavar="DAY", default="9999-12-31", help="Last day."),
)
# fmt: on


def parse_expiry(text: str, now: float) -> float | None:
    """Return the Unix time of `30d`, `2027-01-31` or `none`."""
    if text == "none":
        return None
    span = _SPAN.fullmatch(text)
    if span:
        return now + int(span[1]) * _UNITS_S[span[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        message = f"expires is {text!r}; expected a span such as 12h, 30d or 8w, a day such as 2027-01-31, or none"
        raise InvalidParameter(message, parameter="expires") from error


def key_fields(values: dict[str, Any]) -> KeyFields:
    """Return what the values of `field_options`, and perhaps a name, choose.

    Raises:
        InvalidParameter: a value makes no sense.
    """
    chosen = {name: value for name, value in values.items() if value not in (None, ())}
    for name in LIMITS:
        if name in chosen:
            chosen[name] = _number(name, chosen[name])
    if "expires" in chosen:
        chosen["expires_at"] = parse_expiry(chosen.pop("expires"), time.time())
    return KeyFields(**chosen)


def _number(name: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        message = f"{name} is {text!r}; expected a number, or none for no limit"
        raise InvalidParameter(message, parameter=name)
    return int(text)


@click.group()
def command() -> None:
    """Make, change and revoke API keys, and show what they used.

    KEY is the id of a key, or its name if no other has it.
    """


@command.command()
@click.argument("name")
@field_options
@state_dir_option
@json_option
def create(*, name: str, state_dir: Path | None, as_json: bool, **values: Any) -> None:
    """Make a key and print its secret, which cannot be shown again."""
    fields = key_fields({"name": name, **values})
    created = _store(state_dir).create(fields)
    _write_down(state_dir, "create", created.key, fields)
    _show_created(created, as_json=as_json)


@command.command("list")
@state_dir_option
@json_option
def list_(*, state_dir: Path | None, as_json: bool) -> None:
    """List all keys, revoked ones too."""
    keys = _store(state_dir).list()
    if as_json:
        _print_json(keys)
        return
    rows = [
        (key.id, key.name, key.department, ",".join(key.scopes), _state(key), _day(key.last_used_at)) for key in keys
    ]
    _print_table(("ID", "NAME", "DEPARTMENT", "SCOPES", "STATE", "LAST USED"), rows)


@command.command()
@click.argument("key")
@state_dir_option
@json_option
def show(*, key: str, state_dir: Path | None, as_json: bool) -> None:
    """Describe a key."""
    _show_key(_store(state_dir).find(key), as_json=as_json)


@command.command("set")
@click.argument("key")
@click.option("--name", metavar="TEXT", help="A new name.")
@field_options
@state_dir_option
@json_option
def set_(*, key: str, state_dir: Path | None, as_json: bool, **values: Any) -> None:
    """Change what is named; the rest stays as it is."""
    fields = key_fields(values)
    changed = _store(state_dir).change(key, fields)
    if fields.chosen():
        _write_down(state_dir, "set", changed, fields)
    _show_key(changed, as_json=as_json)


@command.command()
@click.argument("key")
@state_dir_option
@json_option
def rotate(*, key: str, state_dir: Path | None, as_json: bool) -> None:
    """Give a key a new secret; the old one ends at once."""
    rotated = _store(state_dir).rotate(key)
    _write_down(state_dir, "rotate", rotated.key)
    _show_created(rotated, as_json=as_json)


@command.command()
@click.argument("key")
@state_dir_option
@json_option
def revoke(*, key: str, state_dir: Path | None, as_json: bool) -> None:
    """End a key for ever; what it used stays on record."""
    revoked = _store(state_dir).revoke(key)
    _write_down(state_dir, "revoke", revoked)
    _show_key(revoked, as_json=as_json)


@command.command()
@click.argument("key", required=False)
@days_options
@state_dir_option
@json_option
def usage(*, key: str | None, first: str, last: str, state_dir: Path | None, as_json: bool) -> None:
    """Show what was used, by all keys or one."""
    rows = _rows(_store(state_dir), key, first, last)
    if as_json:
        _print_json(rows)
        return
    table = [tuple(str(getattr(row, name)) for name in ("day", "key_name", "model", *COUNTS)) for row in rows]
    _print_table(("DAY", "KEY", "MODEL", *(name.upper().replace("_", " ") for name in COUNTS)), table)


@command.command()
@days_options
@state_dir_option
@json_option
def export(*, first: str, last: str, state_dir: Path | None, as_json: bool) -> None:
    """Write what was used as CSV, or as JSON."""
    rows = _rows(_store(state_dir), None, first, last)
    if as_json:
        _print_json(rows)
    else:
        click.echo(usage_csv(rows), nl=False)


def _store(state_dir: Path | None) -> KeyStore:
    return KeyStore(chosen_state_dir(state_dir))


def _write_down(state_dir: Path | None, change: str, key: Key, fields: KeyFields | None = None) -> None:
    """Put a change that holds into the audit log; it holds too if that fails: a key must be revocable even then."""
    directory = chosen_state_dir(state_dir)
    try:
        write_key_change(directory, change, key, fields)
    except OSError as error:
        reason = error.strerror or str(error)
        complain(f"the change of the key {key.id} holds, but it is not in the audit log in {directory}: {reason}")


def _rows(store: KeyStore, key: str | None, first: str, last: str) -> list[UsageRow]:
    key_id = None if key is None else key if key.startswith("static-") else store.find(key).id
    with store.transaction() as db:
        return read_usage(db, first=first, last=last, key_id=key_id)


def _print_json(document: object) -> None:
    click.echo(json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=False))


def _show_key(key: Key, *, as_json: bool) -> None:
    if as_json:
        _print_json(key)
        return
    values = msgspec.to_builtins(key)
    width = max(map(len, values))
    for name, value in values.items():
        shown = ", ".join(value) if isinstance(value, list | tuple) else value
        shown = _day(value) if name.endswith("_at") else shown
        click.echo(f"{name:<{width}}  {'no limit' if value is None and name in LIMITS else shown}")


def _show_created(created: CreatedKey, *, as_json: bool) -> None:
    if as_json:
        _print_json(created)
        return
    click.echo(created.secret)
    click.echo(f"This is the secret of the key {created.key.id} ({created.key.name}); it is not shown again.", err=True)


def _state(key: Key) -> str:
    return key.refusal(time.time()) or "valid"


def _day(unix_s: float | None) -> str:
    return "never" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
