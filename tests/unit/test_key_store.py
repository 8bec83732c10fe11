"""Keys in SQLite: secrets hashed, changes atomic, names harmless, files private."""

from __future__ import annotations

import sqlite3
import stat

import msgspec
import pytest

from caudal.errors import ConfigError, InvalidParameter
from caudal.server.keys.key import SECRET, Key, KeyFields, digest_of
from caudal.server.keys.key_ring import KeyRing
from caudal.server.keys.key_store import KeyStore, UnknownKey
from caudal.server.keys.state_directory import default_state_dir


@pytest.fixture
def store(tmp_path):
    return KeyStore(tmp_path / "state")


def test_a_secret_is_shown_once_and_kept_nowhere(store, tmp_path):
    created = store.create(KeyFields(name="Anna"))
    assert SECRET.fullmatch(created.secret)
    assert created.secret.split("-")[1] == created.key.id
    everything = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert created.secret.encode() not in everything
    assert created.secret.split("-", 2)[2].encode() not in everything
    assert digest_of(created.secret) in everything


def test_files_are_the_owners_alone(store, tmp_path):
    store.create(KeyFields(name="Anna"))
    ring = KeyRing(store.path)
    for path in (tmp_path / "state", *(tmp_path / "state").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    ring.close()


def test_a_directory_that_others_may_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        KeyStore(tmp_path / "open")


def test_a_path_that_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--state-dir"):
        KeyStore(tmp_path / "file")


def test_what_is_no_database(tmp_path):
    (tmp_path / "caudal.db").write_bytes(b"x" * 5000)
    with pytest.raises(ConfigError, match=r"caudal\.db: file is not a database"):
        KeyStore(tmp_path)


def test_a_newer_database_is_left_alone(store):
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="newer"):
        KeyStore(store.path.parent)


def test_every_field_comes_back(store):
    fields = KeyFields(
        name="Ñandú",
        department="R&D",
        scopes=("inference", "metrics"),
        models=("llama*", "q?"),
        requests_per_minute=1,
        tokens_per_minute=2,
        requests_per_day=3,
        tokens_per_day=4,
        max_parallel=5,
        priority=-6,
        expires_at=7.5,
    )
    made = store.create(fields).key
    found = store.find(made.id)
    assert found == made
    assert {name: getattr(found, name) for name in fields.__struct_fields__} == fields.chosen()


@pytest.mark.parametrize(
    "name", ["'; DROP TABLE keys; --", '" OR 1=1', "Robert'); DELETE FROM keys;--", "%", "_", "a' UNION SELECT 1"]
)
def test_sql_in_names_is_text(store, name):
    other = store.create(KeyFields(name="other")).key
    made = store.create(KeyFields(name=name, department=name, models=(name,))).key
    assert store.find(name) == made
    assert store.change(made.id, KeyFields(department=name + "!")).department == name + "!"
    assert store.list() == [other, msgspec.structs.replace(made, department=name + "!")]
    with pytest.raises(UnknownKey):
        store.find(name + "'")


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"name": "a\r\nx-evil: 1"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "\x1b[31m"}, "name"),
        ({"department": "a\nb"}, "department"),
        ({"scopes": ()}, "scopes"),
        ({"scopes": ("root",)}, "scopes"),
        ({"models": ()}, "models"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_day": -1}, "tokens_per_day"),
        ({"tokens_per_day": 2**60}, "tokens_per_day"),
        ({"priority": 10**9}, "priority"),
        ({"expires_at": -1.0}, "expires_at"),
    ],
)
def test_senseless_fields_are_refused(fields, parameter):
    with pytest.raises(InvalidParameter) as refused:
        KeyFields(**fields)
    assert refused.value.parameter == parameter


def test_change_revoke_rotate(store):
    created = store.create(KeyFields(name="Anna", requests_per_minute=3))
    ring = KeyRing(store.path)
    assert ring.find(created.secret).name == "Anna"
    assert store.change("Anna", KeyFields(requests_per_minute=None)).requests_per_minute is None
    rotated = store.rotate("Anna")
    ring.refresh()
    assert ring.find(created.secret) is None
    assert ring.find(rotated.secret).id == created.key.id
    revoked = store.revoke("Anna")
    assert store.revoke("Anna").revoked_at == revoked.revoked_at
    ring.refresh()
    assert ring.find(rotated.secret).refusal(0) == "revoked"
    with pytest.raises(InvalidParameter, match="revoked"):
        store.rotate("Anna")
    ring.close()


def test_names_need_not_be_unique_but_then_do_not_name_a_key(store):
    first, second = (store.create(KeyFields(name="Anna")).key for _ in range(2))
    with pytest.raises(InvalidParameter, match=f"{first.id}|{second.id}"):
        store.revoke("Anna")
    assert store.revoke(second.id).id == second.id


def test_a_failed_transaction_changes_nothing(store):
    def fail():
        with store.transaction() as db:
            db.execute("UPDATE revision SET number = 77")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.transaction() as db:
        assert db.execute("SELECT number FROM revision").fetchone() == (0,)


def test_the_ring_holds_when_the_database_fails(store, caplog):
    created = store.create(KeyFields(name="Anna"))
    ring = KeyRing(store.path)
    ring.close()  # every further read fails
    for _ in range(3):
        ring.refresh()
    assert ring.find(created.secret).name == "Anna"
    assert len(caplog.records) == 1


def test_may():
    key = Key(id="x", name="x")
    assert key.may("inference")
    assert key.may("models:read")
    assert not key.may("models:write")
    assert not key.may("admin")
    assert Key(id="x", name="x", models=("a/*",)).may_use(["b", "a/c"])
    assert not Key(id="x", name="x", models=("A",)).may_use(["a"])
    assert Key(id="x", name="x", expires_at=5).refusal(5) == "expired"
    assert Key(id="x", name="x", expires_at=5).refusal(4.9) is None


def test_default_state_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "caudal"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / ".local" / "state" / "caudal"
