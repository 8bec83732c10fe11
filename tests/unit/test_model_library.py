"""Models of a folder, fetched from a tiny hub, copied and deleted; the cache keeps what somebody else uses."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from tiny_hub import tiny_hub, use_hub

from caudal.errors import LibraryError
from caudal.hub.model_files import ModelFiles
from caudal.hub.model_library import ModelLibrary
from caudal.hub.pull import pull

BIG = bytes(range(256)) * 1024


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with tiny_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        hub.repos["org/m"] = {"m-Q4_K_M.gguf": BIG, "m-Q8_0.gguf": b"eight", "README.md": b"#"}
        hub.repos["org/big"] = {f"b-0000{n}-of-00003.gguf": b"shard %d" % n for n in (1, 2, 3)}
        yield hub


class Place:
    """A folder of models and the library that changes it."""

    def __init__(self, folder, named=()):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.named = dict(named)
        self.library = ModelLibrary(folder, self.named)

    def models(self):
        return {file.name: file.path for file in ModelFiles([*self.named.items()], self.folder).look()}

    def pull(self, name):
        told = []
        self.library.pull(
            name, lambda files: told.append([file.name for file in files]), lambda *news: told.append(news)
        )
        return told

    def copy(self, name, destination):
        self.library.copy(name, self.models()[name], destination)

    def delete(self, name):
        self.library.delete(name, self.models()[name])


@pytest.fixture
def place(hub, tmp_path):
    return Place(tmp_path / "models")


def refused(reason, function, *arguments):
    with pytest.raises(LibraryError) as caught:
        function(*arguments)
    assert caught.value.reason == reason, caught.value
    return str(caught.value)


def cached(hub):
    """The names of the snapshot's files, and how many blobs there are."""
    links = sorted(path.name for path in hub.cache.glob("models--*/snapshots/*/**/*.gguf"))
    return links, len(list(hub.cache.glob("models--*/blobs/*")))


def test_a_pull_is_listed_and_tells_what_it_does(hub, place):
    told = place.pull("org/m")
    assert told[0] == ["m-Q4_K_M.gguf"]
    assert told[1] == ("m-Q4_K_M.gguf", 0, len(BIG))
    assert told[-1] == ("m-Q4_K_M.gguf", len(BIG), len(BIG))
    assert {name: path.read_bytes() for name, path in place.models().items()} == {"org/m": BIG}
    assert place.models()["org/m"].readlink().is_relative_to(hub.cache)
    place.pull("hf.co/org/m:Q8_0")
    assert list(place.models()) == ["hf.co/org/m:Q8_0", "org/m"]


def test_a_split_model_is_one_model(hub, place):
    place.pull("org/big:latest")
    assert list(place.models()) == ["org/big"]
    place.copy("org/big", "mine")
    place.delete("org/big")
    assert cached(hub)[1] == 3
    place.delete("mine")
    assert place.models() == {}
    assert list(hub.cache.iterdir()) == []


def test_what_is_in_the_cache_is_not_fetched_again(hub, place):
    pull("org/m")
    asked = len(hub.requests)
    place.pull("org/m")
    assert len(hub.requests) == asked
    assert list(place.models()) == ["org/m"]


def test_deleting_the_only_model_of_a_file_frees_the_cache(hub, place):
    place.pull("org/m")
    place.pull("org/m/m-Q8_0.gguf")
    assert cached(hub) == (["m-Q4_K_M.gguf", "m-Q8_0.gguf"], 2)
    place.delete("org/m")
    assert cached(hub) == (["m-Q8_0.gguf"], 1)
    assert list(place.models()) == ["org/m/m-Q8_0.gguf"]
    place.delete("org/m/m-Q8_0.gguf")
    assert list(hub.cache.iterdir()) == []
    assert list(place.folder.iterdir()) == []


def test_the_cache_keeps_what_a_copy_uses(hub, place):
    place.pull("org/m")
    place.copy("org/m", "mine")
    place.delete("org/m")
    assert place.models()["mine"].read_bytes() == BIG
    place.delete("mine")
    assert list(hub.cache.iterdir()) == []


def test_the_cache_keeps_what_a_model_given_by_name_uses(hub, tmp_path):
    named = pull("org/m").path
    place = Place(tmp_path / "models", {"main": named})
    # Another name of the same file, which a listing leaves out and a folder may have all the same.
    link = place.folder / "other.gguf"
    link.symlink_to(named)
    place.library.delete("other", link)
    assert not link.is_symlink()
    assert named.read_bytes() == BIG


@pytest.mark.parametrize("way", ["a link", "a link to a link", "the blob", "dots"])
def test_the_cache_keeps_what_a_named_model_reaches_by_another_way(hub, tmp_path, way):
    path = pull("org/m").path
    ways = {
        "a link": tmp_path / "a.gguf",
        "a link to a link": tmp_path / "b.gguf",
        "the blob": path.resolve(),
        "dots": path.parent / ".." / path.parent.name / path.name,
    }
    ways["a link"].symlink_to(path)
    ways["a link to a link"].symlink_to(ways["a link"])
    place = Place(tmp_path / "models", {"main": ways[way]})
    link = place.folder / "other.gguf"
    link.symlink_to(path)
    place.library.delete("other", link)
    assert ways[way].read_bytes() == BIG


def test_a_real_file_in_the_folder_is_deleted_and_its_copy_stays(hub, place):
    (place.folder / "real.gguf").write_bytes(b"real")
    place.copy("real", "second")
    place.delete("real")
    assert {name: path.read_bytes() for name, path in place.models().items()} == {"second": b"real"}


def test_a_link_to_somewhere_else_is_deleted_and_the_file_stays(hub, place, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"mine")
    (place.folder / "m.gguf").symlink_to(tmp_path / "mine.gguf")
    place.delete("m")
    assert place.models() == {}
    assert (tmp_path / "mine.gguf").read_bytes() == b"mine"


def test_a_link_into_the_cache_that_leads_to_no_snapshot_is_deleted_alone(hub, place):
    blob = pull("org/m").path.resolve()
    (place.folder / "m.gguf").symlink_to(blob)
    place.delete("m")
    assert blob.read_bytes() == BIG


def test_models_given_by_name_are_not_changed(hub, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/in.gguf").write_bytes(b"in the folder")
    (tmp_path / "out.gguf").write_bytes(b"outside")
    place = Place(tmp_path / "models", {"in": tmp_path / "models/in.gguf", "out": tmp_path / "out.gguf"})
    for name in ("in", "out"):
        assert "ask whoever started it" in refused("fixed", place.delete, name)
        refused("fixed", place.copy, name, "x")
    assert refused("fixed", place.library.delete, "m", tmp_path / "out.gguf")
    assert (tmp_path / "models/in.gguf").exists()
    assert (tmp_path / "out.gguf").exists()


def test_what_is_served_by_name_is_not_listed_a_second_time(hub, tmp_path):
    place = Place(tmp_path / "models", {"main": pull("org/m").path})
    assert "is served already, as 'main'" in refused("exists", place.pull, "org/m")
    assert list(place.models()) == ["main"]


def test_a_name_that_is_taken(hub, place):
    (place.folder / "org").mkdir()
    (place.folder / "org/m.gguf").write_bytes(b"somebody's own")
    assert "a file of that name" in refused("exists", place.pull, "org/m")
    place.pull("org/m:Q8_0")
    refused("exists", place.copy, "org/m:Q8_0", "org/m")
    assert place.models()["org/m"].read_bytes() == b"somebody's own"


def test_what_is_so_already_is_done(hub, place):
    for _ in range(2):
        place.pull("org/m")
        place.copy("org/m", "mine")
    assert list(place.models()) == ["mine", "org/m"]


def test_deleting_what_has_gone(hub, place):
    place.pull("org/m")
    path = place.models()["org/m"]
    place.delete("org/m")
    refused("unknown", place.library.delete, "org/m", path)
    refused("unknown", place.library.copy, "org/m", path, "x")


def test_a_model_whose_cache_was_emptied_is_pulled_again(hub, place):
    place.pull("org/m")
    for path in hub.cache.glob("models--*/blobs/*"):
        path.unlink()
    assert place.models() == {}
    place.pull("org/m")
    assert place.models()["org/m"].read_bytes() == BIG


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("m", "name", "ORG/REPO"),
        ("../m", "name", "begins with a dot"),
        ("org/none", "unknown", "has no repository 'org/none'"),
        ("org/m:Q2_K", "unknown", "has nothing of Q2_K"),
        ("org/gated", "unknown", "accepted its licence"),
    ],
)
def test_what_cannot_be_pulled(hub, place, name, reason, says):
    hub.gated = {"org/gated"}
    assert says in refused(reason, place.pull, name)
    assert not hub.cache.exists()
    assert place.models() == {}


def test_the_network(hub, place, monkeypatch):
    hub.cut_after = [1000] + [0] * 20
    assert "connection failed" in refused("network", place.pull, "org/m")
    hub.cut_after = []
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot ask" in refused("network", place.pull, "org/m")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids" in refused("offline", place.pull, "org/m")
    assert place.models() == {}


def test_offline_what_is_in_the_cache_is_listed_and_no_other_file(hub, place, tmp_path, monkeypatch):
    pull("org/m")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place.pull("org/m")
    assert list(place.models()) == ["org/m"]
    (tmp_path / "here/secret").mkdir(parents=True)
    (tmp_path / "here/secret/x.gguf").write_bytes(b"not for clients")
    monkeypatch.chdir(tmp_path)
    for name in ("here/secret/x.gguf", "here/secret"):
        text = refused("unknown", place.pull, name)
        assert str(tmp_path) not in text
    assert list(place.models()) == ["org/m"]


@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSPC, "full"), (errno.EROFS, "disk")])
def test_a_cache_that_refuses(hub, place, monkeypatch, code, reason):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("caudal.hub.partial_file._check_space", refuse)
        text = refused(reason, place.pull, "org/m")
    assert str(hub.cache) not in text
    assert "Hugging Face cache" in text
    assert place.models() == {}
    place.pull("org/m")


def test_a_folder_that_is_full_keeps_what_was_fetched(hub, place, monkeypatch):
    symlink = os.symlink

    def full_in_the_folder(*arguments, **fields):
        if "dir_fd" in fields:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        symlink(*arguments, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", full_in_the_folder)
        refused("full", place.pull, "org/m")
    asked = len(hub.requests)
    place.pull("org/m")
    assert len(hub.requests) == asked


def test_what_progress_raises_ends_the_pull_unchanged(hub, place):
    class Ended(Exception):
        pass

    def progress(_name, done, _total):
        if done:
            raise Ended

    with pytest.raises(Ended):
        place.library.pull("org/m", lambda _: None, progress)
    assert place.models() == {}
    place.pull("org/m")
    assert hub.requests[-1][1] is not None  # it went on


def test_nothing_is_deleted_from_a_repository_that_is_being_pulled(hub, place):
    place.pull("org/m/m-Q8_0.gguf")
    hub.hold_after = 1000
    begun = threading.Event()
    puller = threading.Thread(target=place.library.pull, args=("org/m", lambda _: begun.set(), lambda *_: None))
    puller.start()
    assert begun.wait(10)
    assert "while a model of the same repository is being pulled" in refused("busy", place.delete, "org/m/m-Q8_0.gguf")
    assert list(place.models()) == ["org/m/m-Q8_0.gguf"]
    hub.go_on.set()
    puller.join(20)
    place.delete("org/m/m-Q8_0.gguf")
    assert list(place.models()) == ["org/m"]
    assert cached(hub) == (["m-Q4_K_M.gguf"], 1)


def test_a_cache_that_may_not_be_changed_is_told_and_the_model_is_gone(hub, place, monkeypatch):
    place.pull("org/m")
    path = place.models()["org/m"]

    def refuse(self, **_):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    text = refused("disk", place.library.delete, "org/m", path)
    assert "'org/m' is not served any more, but cannot delete the Hugging Face cache" in text
    assert str(hub.cache) not in text
    assert place.models() == {}
