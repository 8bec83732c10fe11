"""`caudal keys` and `caudal audit` on a state directory."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pwd
import time
from datetime import datetime
from pathlib import Path

import click
import pytest

from caudal.cli import main
from caudal.cli.keys import parse_expiry
from caudal.cli.state_options import state_settings
from caudal.errors import ConfigError, InvalidParameter
from caudal.server.audit.audit_files import append, files_of, lines_of, verify_log
from caudal.server.audit.audit_log import AuditLog
from caudal.server.keys.key import SECRET
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.usage import Usage, UsageLedger


@pytest.fixture
def caudal(capsys, tmp_path):
    def run(*arguments):
        status = main.run([*arguments, "--state-dir", str(tmp_path / "state")])
        return status, *capsys.readouterr()

    return run


def test_a_secret_goes_to_stdout_alone(caudal):
    status, out, err = caudal("keys", "create", "Anna")
    assert status == 0
    assert SECRET.fullmatch(out.strip())
    assert out.strip() not in err
    assert "not shown again" in err


def test_create_set_show_list(caudal):
    options = (
        "--department sales --scope inference --scope metrics --allow-model llama* --rpm 5 --tpd 1000 --priority 2"
    )
    _, out, _ = caudal("keys", "create", "Anna", *options.split(), "--expires", "30d", "--json")
    created = json.loads(out)
    key = created["key"]
    assert SECRET.fullmatch(created["secret"])
    assert (key["scopes"], key["models"], key["priority"]) == (["inference", "metrics"], ["llama*"], 2)
    assert (key["requests_per_minute"], key["tokens_per_day"], key["tokens_per_minute"]) == (5, 1000, None)
    assert abs(key["expires_at"] - time.time() - 30 * 86_400) < 60
    _, out, _ = caudal("keys", "set", "Anna", "--rpm", "none", "--name", "Ana", "--expires", "none", "--json")
    assert json.loads(out) == key | {"requests_per_minute": None, "name": "Ana", "expires_at": None}
    _, out, _ = caudal("keys", "show", key["id"])
    assert "tokens_per_day       1000" in out
    assert "requests_per_minute  no limit" in out
    _, out, _ = caudal("keys", "list")
    assert key["id"] in out
    assert "valid" in out
    assert created["secret"] not in out
    _, out, _ = caudal("keys", "list", "--json")
    assert [row["name"] for row in json.loads(out)] == ["Ana"]


def test_rotate_and_revoke(caudal):
    _, first, _ = caudal("keys", "create", "Anna")
    _, second, _ = caudal("keys", "rotate", "Anna")
    assert SECRET.fullmatch(second.strip())
    assert first != second
    assert caudal("keys", "revoke", "Anna")[0] == 0
    assert "revoked" in caudal("keys", "list")[1]
    assert caudal("keys", "rotate", "Anna")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "status", "fact"),
    [
        (["show", "nobody"], 1, "no key has the id or the name 'nobody'"),
        (["revoke", "' OR 1=1 --"], 1, "no key has the id or the name"),
        (["create", "a\nb"], 2, "printable"),
        (["create", "a", "--rpm", "many"], 2, "requests_per_minute is 'many'"),
        (["create", "a", "--rpm", "0"], 2, "requests_per_minute is 0"),
        (["create", "a", "--scope", "root"], 2, "'root' is not one of"),
        (["create", "a", "--expires", "soon"], 2, "expires is 'soon'"),
        (["frob"], 2, "No such command 'frob'"),
    ],
)
def test_misuse_is_one_line(caudal, capsys, arguments, status, fact):
    found, out, err = caudal("keys", *arguments)
    assert (found, out) == (status, "")
    assert fact in err
    assert err.count("\n") == 1


def test_usage_and_export(caudal, tmp_path):
    caudal("keys", "create", "Anna")
    store = KeyStore(tmp_path / "state")
    ledger = UsageLedger(store.path, lambda: 86_400.0)
    ledger.add(store.find("Anna").id, "llama", Usage(requests=3, generated_tokens=5))
    ledger.add("static-1", "llama", Usage(requests=1))
    ledger.close()
    _, out, _ = caudal("keys", "usage", "Anna")
    assert out.splitlines()[0].split()[:4] == ["DAY", "KEY", "MODEL", "REQUESTS"]
    assert out.splitlines()[1].split()[:4] == ["1970-01-02", "Anna", "llama", "3"]
    assert len(json.loads(caudal("keys", "usage", "--json")[1])) == 2
    assert len(json.loads(caudal("keys", "usage", "static-1", "--json")[1])) == 1
    _, out, _ = caudal("keys", "export", "--from", "1970-01-01", "--to", "1970-01-02")
    assert {row["requests"] for row in csv.DictReader(io.StringIO(out))} == {"3", "1"}
    _, out, _ = caudal("keys", "export", "--to", "1970-01-01", "--json")
    assert json.loads(out) == []


def test_expiry():
    assert parse_expiry("none", 5) is None
    assert parse_expiry("12h", 5) == 5 + 12 * 3600
    assert parse_expiry("1970-01-02", 5) == 86_400
    for text in ("", "5", "-3d", "3y", "1970-13-01", "1e3d"):
        with pytest.raises(InvalidParameter):
            parse_expiry(text, 5)


def test_audit_verify_and_export(caudal, tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    append(state, "2026-01-01", [{"n": 1}, {"n": 2}], durable=False)
    append(state, "2026-01-02", [{"n": 3}], durable=False)
    assert caudal("audit", "verify") == (0, "whole: 3 lines\n", "")
    _, out, _ = caudal("audit", "export", "--from", "2026-01-02", "--to", "2026-01-02")
    assert [json.loads(line)["n"] for line in out.splitlines()] == [3]
    path = files_of(state)[0]
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":7'))
    status, out, _ = caudal("audit", "verify")
    assert status == 1
    assert out.startswith("broken at audit-2026-01-01.jsonl line 2: ")
    status, out, _ = caudal("audit", "verify", "--json")
    assert (status, json.loads(out)["broken"]["line"]) == (1, 2)


@pytest.mark.parametrize("verb", ["verify", "export"])
@pytest.mark.parametrize("what", ["missing", "a folder in place of a day", "forbidden"])
def test_an_audit_log_that_cannot_be_read_is_one_line(caudal, tmp_path, monkeypatch, verb, what):
    state = tmp_path / "state"

    def forbid(_path):
        raise PermissionError(errno.EACCES, "Permission denied", str(state))

    if what != "missing":
        state.mkdir(mode=0o700)
        (state / "audit-2026-01-01.jsonl").mkdir()
    if what == "forbidden":  # as it is for everybody but root, for whom tests may run
        monkeypatch.setattr(Path, "iterdir", forbid)
    status, out, err = caudal("audit", verb)
    assert (status, out) == (2, "")
    assert err.startswith(f"caudal: cannot read the audit log in {state}: ")
    assert err.count("\n") == 1


def test_an_empty_audit_log_is_exported_as_such(caudal, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    assert caudal("audit", "export") == (0, "", "")


def changes_in(tmp_path):
    assert verify_log(tmp_path / "state").broken is None
    return [json.loads(line) for _, _, line in lines_of(files_of(tmp_path / "state"))]


def test_every_change_of_a_key_is_in_the_audit_log(caudal, tmp_path):
    _, out, _ = caudal("keys", "create", "Anna", "--rpm", "5", "--scope", "admin", "--json")
    key = json.loads(out)["key"]
    secrets = [json.loads(out)["secret"]]
    caudal("keys", "set", "Anna", "--rpm", "none", "--name", f"was {secrets[0]}")
    caudal("keys", "set", key["id"])  # nothing
    secrets.append(caudal("keys", "rotate", key["id"])[1].strip())
    caudal("keys", "revoke", key["id"])
    for arguments in (["list"], ["show", key["id"]], ["usage"], ["export"], ["set", "nobody", "--rpm", "1"]):
        caudal("keys", *arguments)
    changes = changes_in(tmp_path)
    assert [change["change"] for change in changes] == ["create", "set", "rotate", "revoke"]
    assert {(change["event"], change["key_id"]) for change in changes} == {("key_change", key["id"])}
    assert {(change["uid"], change["user"]) for change in changes} == {(os.getuid(), pwd.getpwuid(os.getuid()).pw_name)}
    assert [change["fields"] for change in changes] == [
        {"name": "Anna", "scopes": ["admin"], "requests_per_minute": 5},
        {"name": "was ck-[removed]", "requests_per_minute": None},
        {},
        {},
    ]
    assert all(abs(time.time() - datetime.fromisoformat(change["time"]).timestamp()) < 60 for change in changes)
    written = b"".join(path.read_bytes() for path in files_of(tmp_path / "state"))
    assert not [secret for secret in secrets if secret.encode() in written]


@pytest.mark.parametrize(
    "arguments", [["create", "Ben"], ["set", "Anna", "--rpm", "3"], ["rotate", "Anna"], ["revoke", "Anna"]]
)
def test_a_change_holds_and_says_so_if_the_audit_log_cannot_be_written(caudal, tmp_path, monkeypatch, arguments):
    caudal("keys", "create", "Anna")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("caudal.server.audit.key_changes.append", full)
    status, out, err = caudal("keys", *arguments)
    assert status == 0
    assert out
    assert "not in the audit log" in err
    assert "No space left on device" in err
    assert len(changes_in(tmp_path)) == 1
    key = KeyStore(tmp_path / "state").find(arguments[1])
    assert arguments[0] != "revoke" or key.revoked_at is not None
    assert arguments[0] != "set" or key.requests_per_minute == 3


def test_the_command_line_and_a_server_write_one_chain(caudal, tmp_path):
    caudal("keys", "create", "Anna")
    log = AuditLog(tmp_path / "state", retention_days=180)
    for n in range(20):
        for i in range(20):
            log.add({"event": "request", "n": n * 20 + i})
        caudal("keys", "set", "Anna", "--rpm", str(n + 1))
    log.close()
    events = changes_in(tmp_path)
    assert [event["n"] for event in events if event["event"] == "request"] == list(range(400))
    limits = [event["fields"].get("requests_per_minute") for event in events if event["event"] == "key_change"]
    assert limits == [None, *range(1, 21)]


def test_what_root_writes_belongs_to_the_owner_of_the_directory(caudal, tmp_path, monkeypatch):
    given = set()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda file, *owner: given.add((Path(f"/proc/self/fd/{file}").readlink(), owner)))
    caudal("keys", "create", "Anna")
    state = tmp_path / "state"
    owner = (state.stat().st_uid, state.stat().st_gid)
    names = {"audit.lock", "audit-head.json.new", *(path.name for path in files_of(state))}
    assert given == {(state / name, owner) for name in names}


def values(**changes):
    return {"state_dir": None, "audit_log": None, "audit_retention_days": 9, "audit_strict": False, **changes}


def test_a_default_directory_that_cannot_be_made_is_done_without(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert state_settings(values())["state_dir"] is None
    assert "knows no keys" in caplog.text
    for asked in ({"state_dir": tmp_path / "file" / "x"}, {"audit_log": "full"}):
        with pytest.raises(ConfigError):
            state_settings(values(**asked))


def test_a_directory_with_keys_that_cannot_be_read_is_not_done_without(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "caudal").mkdir(mode=0o700)
    (tmp_path / "caudal" / "caudal.db").write_bytes(b"x" * 4096)
    with pytest.raises(ConfigError, match="not a database"):
        state_settings(values())


def test_every_subcommand_says_what_it_does():
    for verb in ("keys", "audit"):
        group = main.cli.get_command(None, verb)
        assert isinstance(group, click.Group)
        assert all(command.help for command in group.commands.values())
