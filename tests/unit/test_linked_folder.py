"""Links of a folder of models: put in, copied and taken away whole, and never through a link that is in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from caudal.errors import LibraryError
from caudal.hub.linked_folder import LinkedFolder, link_target


@pytest.fixture
def place(tmp_path):
    """A folder of models, one outside of it, and weights."""
    for name in ("models", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "m.gguf").write_bytes(b"not ours")
    (tmp_path / "w.gguf").write_bytes(b"weights")
    for number in (1, 2, 3):
        (tmp_path / f"s-0000{number}-of-00003.gguf").write_bytes(b"shard %d" % number)
    return tmp_path


@pytest.fixture
def folder(place):
    return LinkedFolder(place / "models")


def shards(folder):
    return [folder / f"s-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(reason, function, *arguments):
    with pytest.raises(LibraryError) as caught:
        function(*arguments)
    assert caught.value.reason == reason, caught.value
    return str(caught.value)


def test_a_model_is_added_copied_and_removed(place, folder):
    folder.add("org/m:Q8", [place / "w.gguf"])
    link = place / "models/org/m:Q8.gguf"
    assert link.readlink() == place / "w.gguf"
    assert folder.links() == [link]
    folder.copy([link], "mine")
    folder.remove([link])
    assert tree(place / "models") == ["mine.gguf"]
    assert link_target(place / "models/mine.gguf") == place / "w.gguf"
    assert (place / "models/mine.gguf").read_bytes() == b"weights"


def test_all_shards_of_a_model_go_together(place, folder):
    folder.add("org/big", shards(place))
    links = [place / f"models/org/big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [link.read_bytes() for link in links] == [b"shard 1", b"shard 2", b"shard 3"]
    folder.copy(links, "copy")
    folder.remove(links)
    assert tree(place / "models") == [f"copy-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def test_the_first_shard_comes_last_and_goes_first(place, folder, monkeypatch):
    """Whoever looks meanwhile sees the whole model or none."""
    made, removed = [], []
    symlink, unlink = os.symlink, os.unlink
    monkeypatch.setattr(os, "symlink", lambda *a, **k: (made.append(a[1]), symlink(*a, **k)))
    monkeypatch.setattr(os, "unlink", lambda *a, **k: (removed.append(a[0]), unlink(*a, **k)))
    folder.add("big", shards(place))
    folder.remove([place / "models" / name for name in sorted(made)])
    assert made[-1] == removed[0] == "big-00001-of-00003.gguf"
    assert len(made) == len(removed) == 3


def test_a_copy_of_a_real_file_is_a_second_name_of_it(place, folder):
    file = place / "models/real.gguf"
    file.write_bytes(b"real")
    folder.copy([file], "second")
    folder.remove([file])
    assert not (place / "models/second.gguf").is_symlink()
    assert (place / "models/second.gguf").read_bytes() == b"real"


def test_a_relative_link_is_copied_to_where_it_leads(place, folder):
    (place / "models/sub").mkdir()
    (place / "models/sub/m.gguf").symlink_to("../../w.gguf")
    folder.copy([place / "models/sub/m.gguf"], "copy")
    assert (place / "models/copy.gguf").read_bytes() == b"weights"


def test_a_name_that_is_taken_stays_as_it_is(place, folder):
    (place / "models/m.gguf").write_bytes(b"first")
    assert "a file of that name" in refused("exists", folder.add, "m", [place / "w.gguf"])
    refused("exists", folder.copy, [place / "models/m.gguf"], "m")
    assert (place / "models/m.gguf").read_bytes() == b"first"
    (place / "models/big-00002-of-00003.gguf").write_bytes(b"first")
    refused("exists", folder.add, "big", shards(place))
    assert tree(place / "models") == ["big-00002-of-00003.gguf", "m.gguf"]


def test_a_link_that_is_there_already_stays_whatever_comes_after_it(place, folder, monkeypatch):
    files, symlink = shards(place), os.symlink
    folder.add("big", files)
    folder.add("big", files)
    (place / "models/big-00001-of-00003.gguf").unlink()

    def full(file, entry, dir_fd):
        if entry == "big-00001-of-00003.gguf":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        symlink(file, entry, dir_fd=dir_fd)

    monkeypatch.setattr(os, "symlink", full)
    refused("full", folder.add, "big", files)
    assert tree(place / "models") == ["big-00002-of-00003.gguf", "big-00003-of-00003.gguf"]


def test_links_that_lead_nowhere_make_way(place, folder):
    for name in ("m.gguf", "m-00001-of-00002.gguf", "m-2.gguf"):
        (place / "models" / name).symlink_to(place / "gone.gguf")
    folder.add("m", [place / "w.gguf"])
    assert tree(place / "models") == ["m-2.gguf", "m.gguf"]
    assert (place / "models/m.gguf").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "name", ["../m", "a/../../m", "/tmp/m", "..", ".", "", "a//m", "a/./m", "a\0b", "a/..", "~/\n"]
)
def test_names_that_lead_out_are_refused_here_too(place, folder, name):
    (place / "models/real.gguf").write_bytes(b"real")
    before = tree(place)
    refused("name", folder.add, name, [place / "w.gguf"])
    refused("name", folder.copy, [place / "models/real.gguf"], name)
    assert tree(place) == before


def test_a_link_to_a_folder_outside_is_not_followed(place, folder):
    (place / "models/org").symlink_to(place / "outside", target_is_directory=True)
    (place / "models/real.gguf").write_bytes(b"real")
    for function, *arguments in (
        (folder.add, "org/new", [place / "w.gguf"]),
        (folder.add, "org/deep/new", [place / "w.gguf"]),
        (folder.copy, [place / "models/real.gguf"], "org/new"),
        (folder.copy, [place / "models/org/m.gguf"], "new"),
        (folder.remove, [place / "models/org/m.gguf"]),
    ):
        assert "links are not followed" in refused("disk", function, *arguments)
    assert tree(place / "outside") == ["m.gguf"]
    assert (place / "outside/m.gguf").read_bytes() == b"not ours"
    assert tree(place / "models") == ["org", "real.gguf"]


def test_a_link_put_in_the_way_at_the_last_moment_is_not_followed(place, folder, monkeypatch):
    """Somebody wins the race between looking and making."""

    def race(part, dir_fd):
        os.symlink(place / "outside", part, dir_fd=dir_fd)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "mkdir", race)
    refused("disk", folder.add, "org/new", [place / "w.gguf"])
    assert tree(place / "outside") == ["m.gguf"]


def test_a_folder_that_is_swapped_for_a_link_while_it_is_open_does_not_lead_out(place, folder, monkeypatch):
    (place / "models/org").mkdir()
    symlink = os.symlink

    def swap(target, entry, dir_fd):
        (place / "models/org").rename(place / "models/away")
        symlink(place / "outside", place / "models/org")
        symlink(target, entry, dir_fd=dir_fd)

    monkeypatch.setattr(os, "symlink", swap)
    folder.add("org/new", [place / "w.gguf"])
    assert tree(place / "outside") == ["m.gguf"]
    assert (place / "models/away/new.gguf").read_bytes() == b"weights"


def test_an_entry_that_is_a_link_is_removed_and_not_what_it_leads_to(place, folder):
    (place / "models/m.gguf").symlink_to(place / "outside/m.gguf")
    folder.remove([place / "models/m.gguf"])
    assert tree(place / "models") == []
    assert (place / "outside/m.gguf").read_bytes() == b"not ours"


@pytest.mark.parametrize("path", ["outside/m.gguf", "models/../outside/m.gguf"])
def test_files_outside_are_not_touched(place, folder, path):
    refused("fixed", folder.remove, [place / path])
    refused("fixed", folder.copy, [place / path], "stolen")
    assert tree(place / "models") == []
    assert (place / "outside/m.gguf").exists()


def test_a_file_where_a_folder_must_be(place, folder):
    (place / "models/org").write_bytes(b"a file")
    refused("disk", folder.add, "org/m", [place / "w.gguf"])
    assert (place / "models/org").read_bytes() == b"a file"


def test_what_has_gone_is_unknown(place, folder):
    refused("unknown", folder.remove, [place / "models/m.gguf"])
    refused("unknown", folder.remove, [place / "models/org/m.gguf"])
    refused("unknown", folder.copy, [place / "models/m.gguf"], "x")
    assert tree(place / "models") == []


def test_a_folder_that_others_use_stays(place, folder):
    folder.add("org/a", [place / "w.gguf"])
    folder.add("org/b", [place / "w.gguf"])
    folder.remove([place / "models/org/a.gguf"])
    assert tree(place / "models") == ["org", "org/b.gguf"]
    folder.remove([place / "models/org/b.gguf"])
    assert tree(place / "models") == []


@pytest.mark.parametrize(
    ("code", "reason", "says"),
    [
        (errno.ENOSPC, "full", "the disk of --models-dir is full"),
        (errno.EDQUOT, "full", "make room"),
        (errno.EROFS, "disk", "let the server's user write there"),
        (errno.EACCES, "disk", "cannot change --models-dir"),
    ],
)
def test_a_disk_that_refuses_leaves_nothing_of_a_model(place, folder, monkeypatch, code, reason, says):
    symlink, made = os.symlink, []

    def second_fails(target, entry, dir_fd):
        if made:
            raise OSError(code, os.strerror(code))
        made.append(entry)
        symlink(target, entry, dir_fd=dir_fd)

    monkeypatch.setattr(os, "symlink", second_fails)
    text = refused(reason, folder.add, "org/big", shards(place))
    assert says in text
    assert str(place) not in text
    assert made == ["big-00003-of-00003.gguf"]
    assert tree(place / "models") == []


def test_a_file_system_that_gives_no_second_names_says_so(place, folder, monkeypatch):
    def link(*_, **__):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    (place / "models/real.gguf").write_bytes(b"real")
    monkeypatch.setattr(os, "link", link)
    assert "gives a file no second name" in refused("disk", folder.copy, [place / "models/real.gguf"], "x")
    assert tree(place / "models") == ["real.gguf"]


def test_the_folder_itself_may_be_a_link(place):
    (place / "models").rmdir()
    (place / "elsewhere").mkdir()
    (place / "models").symlink_to(place / "elsewhere", target_is_directory=True)
    folder = LinkedFolder(place / "models")
    folder.add("org/m", [place / "w.gguf"])
    assert tree(place / "elsewhere") == ["org", "org/m.gguf"]
    folder.remove([place / "models/org/m.gguf"])
    assert tree(place / "elsewhere") == []


def test_no_folder_stays_open(place, folder):
    before = len(list(Path("/dev/fd").iterdir()))
    folder.add("a/b/m", [place / "w.gguf"])
    refused("exists", folder.add, "a/b/m", [place / "other.gguf"])
    refused("unknown", folder.remove, [place / "models/a/x/m.gguf"])
    folder.remove([place / "models/a/b/m.gguf"])
    assert len(list(Path("/dev/fd").iterdir())) == before
