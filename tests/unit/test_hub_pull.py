"""Pulling from a tiny hub: choice, resumption, checks and refusals; and deleting what was pulled."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_hub import COMMIT, tiny_hub, use_hub

from caudal.cli import main
from caudal.errors import CaudalError, ConfigError, ModelNotFound
from caudal.hub import partial_file
from caudal.hub.partial_file import DownloadCutShort, DownloadError, WantedFile, download
from caudal.hub.pull import QUANT_ORDER, ModelName, choose_files, pull, read_name
from caudal.hub.remove import plan_removal
from caudal.hub.repository import repository_of
from caudal.hub.resolve import list_models, resolve

BIG = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with tiny_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        hub.repos["org/m"] = {"m-Q4_K_M.gguf": BIG, "m-Q8_0.gguf": b"eight", "README.md": b"#", "mmproj-m.gguf": b"x"}
        yield hub


def test_a_pull_fills_the_cache_that_resolve_reads(hub):
    pulled = pull("org/m")
    assert pulled.path.read_bytes() == BIG
    assert (pulled.name, pulled.num_bytes, pulled.num_new_bytes) == ("org/m/m-Q4_K_M.gguf", len(BIG), len(BIG))
    assert resolve("org/m") == resolve(pulled.name) == pulled.path
    assert (hub.cache / "models--org--m/refs/main").read_text() == COMMIT
    assert str(pulled.path.readlink()) == f"../../blobs/{hashlib.sha256(BIG).hexdigest()}"
    again = pull("hf.co/org/m:Q4_K_M")
    assert (again.path, again.num_new_bytes) == (pulled.path, 0)
    assert len(hub.requests) == 1


def test_the_hubs_own_client_finds_what_was_pulled(hub):
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    pulled = pull("org/m")
    assert try_to_load_from_cache("org/m", "m-Q4_K_M.gguf", cache_dir=hub.cache) == str(pulled.path)


def test_all_shards_of_a_split_model_come(hub):
    hub.repos["org/big"] = {f"q8/big-Q8_0-0000{n}-of-00003.gguf": b"shard %d" % n for n in (1, 2, 3)}
    pulled = pull("org/big")
    assert pulled.path.name == "big-Q8_0-00001-of-00003.gguf"
    assert [pulled.path.with_name(f"big-Q8_0-0000{n}-of-00003.gguf").read_bytes() for n in (1, 2, 3)] == [
        b"shard 1", b"shard 2", b"shard 3",
    ]  # fmt: skip
    assert pulled.num_bytes == 21
    assert resolve("org/big") == pulled.path


def test_a_connection_that_ends_is_resumed_at_once(hub):
    hub.cut_after = [1000, 0, 50_000]
    assert pull("org/m").path.read_bytes() == BIG
    assert [asked for _, asked in hub.requests] == [None, "bytes=1000-", "bytes=1000-", "bytes=51000-"]


def test_an_interrupted_pull_goes_on_in_the_next_one(hub):
    def interrupt(_file, done, _total):
        if done:
            raise KeyboardInterrupt

    hub.cut_after = [300_000]
    with pytest.raises(KeyboardInterrupt):
        pull("org/m", interrupt)
    (partial,) = (hub.cache / "models--org--m/blobs").iterdir()
    assert partial.name.endswith(".incomplete")
    had = partial.stat().st_size
    assert 0 < had <= 300_000
    with pytest.raises(ModelNotFound):
        resolve("org/m")
    hub.cut_after = []
    told = []
    assert pull("org/m", lambda *news: told.append(news)).path.read_bytes() == BIG
    assert hub.requests[-1][1] == f"bytes={had}-"
    assert told[0] == ("m-Q4_K_M.gguf", had, len(BIG))
    assert told[-1] == ("m-Q4_K_M.gguf", len(BIG), len(BIG))
    assert not partial.exists()


def test_a_server_that_cannot_resume_sends_all_of_it(hub):
    hub.resumes = False
    hub.cut_after = [1000]
    assert pull("org/m").path.read_bytes() == BIG


def test_a_connection_that_never_holds_is_given_up_and_what_came_is_kept(hub):
    hub.cut_after = [1000] + [0] * 20
    with pytest.raises(DownloadError, match=r"m-Q4_K_M.gguf: the connection failed 6 times .*; 1000 of 1048576 bytes"):
        pull("org/m")
    hub.cut_after = []
    assert pull("org/m").path.read_bytes() == BIG


def test_a_pull_whose_connection_fails_can_be_ended_before_the_next_attempt(hub):
    told = []

    class Ended(Exception):
        pass

    def end_at_the_second(_file, done, _total):
        told.append(done)
        if told.count(done) > 1:
            raise Ended

    hub.cut_after = [1000] + [0] * 20
    with pytest.raises(Ended):
        pull("org/m", end_at_the_second)
    assert told[-2:] == [1000, 1000]
    assert len(hub.requests) == 1


def test_wrong_bytes_are_thrown_away(hub):
    hub.wrong = {"m-Q4_K_M.gguf"}
    with pytest.raises(DownloadError, match=rf"expected 1048576 with {hashlib.sha256(BIG).hexdigest()}"):
        pull("org/m")
    with pytest.raises(ModelNotFound):
        resolve("org/m")
    hub.wrong = set()
    assert pull("org/m").path.read_bytes() == BIG
    assert hub.requests[-1][1] is None


def test_bytes_that_were_wrong_before_the_resumption_are_found(hub):
    blobs = hub.cache / "models--org--m/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(BIG).hexdigest()}.incomplete").write_bytes(b"other bytes")
    with pytest.raises(DownloadError, match="thrown away; try again"):
        pull("org/m")
    assert pull("org/m").path.read_bytes() == BIG


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", "has no repository 'org/none', or it is private"),
        ("org/m:Q2_K", r"org/m has nothing of Q2_K; it has m-Q4_K_M.gguf, m-Q8_0.gguf"),
        ("org/m/x.gguf", r"org/m holds no x.gguf; it has m-Q4_K_M.gguf"),
        ("org/st", "org/st holds no GGUF file"),
        ("org/gated", "org/gated is only for those who have accepted its licence"),
        ("org/cut", r"org/cut has 1 of 2 shards"),
    ],
)
def test_what_the_hub_does_not_have(hub, name, message):
    hub.repos["org/st"] = {"model.safetensors": b"x"}
    hub.repos["org/cut"] = {"c-00001-of-00002.gguf": b"x"}
    hub.gated = {"org/gated"}
    with pytest.raises(ModelNotFound, match=message):
        pull(name)
    assert not hub.cache.exists()


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"cannot ask http://127.0.0.1:9 about org/m"):
        pull("org/m")


def test_a_refusal_of_the_file_itself_is_told_at_once(hub):
    hub.status = 403
    with pytest.raises(DownloadError, match=r"m-Q4_K_M.gguf: http://127.* answered 403"):
        pull("org/m")
    assert len(hub.requests) == 1


def test_offline_nothing_is_asked(hub, monkeypatch):
    pulled = pull("org/m")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert pull("org/m").path == pulled.path
    with pytest.raises(CaudalError, match="org/m:Q8_0 is not on this disk, and HF_HUB_OFFLINE forbids"):
        pull("org/m:Q8_0")


def test_a_full_disk_is_told_before_and_during(hub, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: os.terminal_size((0, 0)) and type("Usage", (), {"free": 10}))
        with pytest.raises(DownloadError, match=r"the disk is full, .*1048576 bytes are to come, and 10 are free"):
            pull("org/m")
        assert not hub.requests

    class FullDisk:
        """A hash that stands for a writer: after the first chunk there is no room."""

        def __init__(self, _wanted):
            self.name = "sha256"

        def update(self, _chunk):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(partial_file, "new_hash", FullDisk)
        with pytest.raises(DownloadError, match=r"the disk is full, .*No space left on device; make room"):
            pull("org/m")
    assert pull("org/m").path.read_bytes() == BIG


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere; runs as a user, as in CI")
def test_a_cache_that_may_not_be_written_to(hub):
    hub.cache.mkdir()
    hub.cache.chmod(0o500)
    with pytest.raises(DownloadError, match=r"cannot write to .*: Permission denied; set HF_HUB_CACHE"):
        pull("org/m")


def test_a_cache_that_is_no_folder(hub):
    hub.cache.write_text("a file is in the way")
    with pytest.raises(DownloadError, match=r"cannot write to .*: Not a directory; set HF_HUB_CACHE"):
        pull("org/m")


def test_two_pulls_at_once_download_once(hub):
    name = hashlib.sha256(BIG).hexdigest()
    blobs = hub.cache / "models--org--m/blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{name}.incomplete"
    results = []
    with partial.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: results.append(pull("org/m")))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        other.write(BIG)
        other.flush()
        partial.rename(blobs / name)
    thread.join(10)
    assert results[0].num_new_bytes == 0
    assert not hub.requests
    assert results[0].path.read_bytes() == BIG


def test_a_newer_commit_keeps_what_it_shares_in_sight(hub):
    pull("org/m:Q8_0")
    hub.commit = "b" * 40
    pull("org/m")
    assert [entry.name for entry in list_models()] == ["org/m/m-Q4_K_M.gguf", "org/m/m-Q8_0.gguf"]


def test_names_that_lead_out_of_the_repository_are_not_taken(hub):
    lfs = {"sha256": "0" * 64, "size": 1, "pointerSize": 1}
    bad = ["../../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "..\\evil.gguf", "./e.gguf"]
    hub.repos["org/bad"] = {}
    hub.extra_siblings = [{"rfilename": name, "size": 1, "blobId": "0" * 40, "lfs": lfs} for name in bad]
    hub.extra_siblings.append({"rfilename": "x.gguf", "size": 1, "blobId": "../x", "lfs": None})
    with pytest.raises(ModelNotFound, match="org/bad holds no GGUF file"):
        pull("org/bad")


@pytest.mark.parametrize("commit", [None, "", "main", "../" * 14, "a" * 39])
def test_a_commit_that_is_none(commit):
    with pytest.raises(DownloadError, match="expected 40 hex digits"):
        repository_of("org/m", commit, [])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/m", ModelName(repo_id="org/m")),
        ("org/m:latest", ModelName(repo_id="org/m")),
        ("hf.co/org/m:Q8_0", ModelName(repo_id="org/m", quant="Q8_0")),
        ("https://huggingface.co/org/m/", ModelName(repo_id="org/m")),
        ("HF.CO/org/m/sub/x.gguf", ModelName(repo_id="org/m", file="sub/x.gguf")),
        ("https://huggingface.co/org/m/blob/main/x.gguf?download=true", ModelName(repo_id="org/m", file="x.gguf")),
        ("hf://org/m", ModelName(repo_id="org/m")),
    ],
)  # fmt: skip
def test_names(text, name):
    assert read_name(text) == name


@pytest.mark.parametrize("text", ["", "m", "smollm2", "org/m/x", "a/b/c/d", "https://example.com/org/m", "org/"])
def test_what_is_no_name(text):
    with pytest.raises(ConfigError, match=r"cannot pull .*ORG/REPO"):
        read_name(text)


def test_the_documented_order_decides():
    wanted = ModelName(repo_id="org/m")
    for count in range(1, len(QUANT_ORDER) + 1):
        files = [f"m-{quant}.gguf" for quant in QUANT_ORDER[-count:]]
        assert choose_files(files, wanted) == [files[0]]
    assert choose_files(["m-TQ1_0.gguf"], wanted) == ["m-TQ1_0.gguf"]
    assert choose_files(["m-Q4_K.gguf", "m-Q4_K_M.gguf"], ModelName(repo_id="o/m", quant="q4_k")) == ["m-Q4_K.gguf"]


class Pieces:
    """A source that gives pieces of a text, breaks off where it is told to, and may not be able to resume."""

    def __init__(self, data, cuts, *, resumes):
        self.data, self.cuts, self.resumes = data, list(cuts), resumes

    def read_from(self, offset):
        from contextlib import nullcontext  # noqa: PLC0415

        start = offset if self.resumes else 0
        return nullcontext((start, self._chunks(start)))

    def _chunks(self, start):
        size, breaks_after = self.cuts.pop(0) if self.cuts else (7, None)
        for number, at in enumerate(range(start, len(self.data), size)):
            if number == breaks_after:
                message = "gone"
                raise DownloadCutShort(message)
            yield self.data[at : at + size]


@given(
    st.binary(max_size=60),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=5),
    st.binary(max_size=70) | st.integers(0, 60),
    st.booleans(),
)
def test_whatever_happens_the_file_is_right_or_absent(tmp_path_factory, data, cuts, before, resumes):
    """However the bytes come, and whatever an earlier attempt has left."""
    folder = tmp_path_factory.mktemp("blobs")
    wanted = WantedFile(name="x", num_bytes=len(data), digest=hashlib.sha256(data).hexdigest())
    (folder / "x.incomplete").write_bytes(data[:before] if isinstance(before, int) else before)
    try:
        assert download(wanted, Pieces(data, cuts, resumes=resumes), folder / "x", wait=lambda _: None)
    except DownloadError:
        assert not (folder / "x").exists()
        download(wanted, Pieces(data, [], resumes=True), folder / "x", wait=lambda _: None)
    assert (folder / "x").read_bytes() == data
    assert not download(wanted, Pieces(b"", [], resumes=True), folder / "x")


def run(capsys, *arguments):
    status = main.run(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_the_verbs(hub, capsys, monkeypatch):
    status, out, err = run(capsys, "pull", "org/m")
    assert (status, err) == (0, "org/m/m-Q4_K_M.gguf: 1.0 MiB\n")
    assert out.strip() == str(resolve("org/m"))
    assert "was here already" in run(capsys, "pull", "org/m")[2]
    status, out, _ = run(capsys, "list")
    assert [line.split() for line in out.splitlines()] == [["NAME", "SIZE", "MODIFIED"], ["org/m/m-Q4_K_M.gguf", "1.0", "MiB", "now"]]  # fmt: skip # noqa: E501
    assert run(capsys, "pull", "nonsense")[0] == 2
    status, _, err = run(capsys, "pull", "org/none")
    assert (status, err.count("\n")) == (1, 1)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert run(capsys, "rm", "org/m") == (1, "", "nothing was deleted\n")
    assert resolve("org/m").is_file()
    assert run(capsys, "rm", "org/m", "--yes") == (0, "", "deleted m-Q4_K_M.gguf; 1.0 MiB are free again\n")
    assert not (hub.cache / "models--org--m").exists()


def test_removing_takes_only_what_no_other_model_uses(hub):
    hub.repos["org/m"]["copy-Q5_0.gguf"] = BIG  # the same bytes under another name
    pull("org/m")
    pull("org/m:Q5_0")
    pull("org/m:Q8_0")
    removal = plan_removal("org/m:Q4_K_M")
    assert removal.num_bytes == 0
    removal.carry_out()
    assert resolve("org/m:Q5_0").read_bytes() == BIG
    assert plan_removal("org/m:Q5_0").num_bytes == len(BIG)
    plan_removal("org/m:Q5_0").carry_out()
    assert [entry.name for entry in list_models()] == ["org/m/m-Q8_0.gguf"]
    assert len(list((hub.cache / "models--org--m/blobs").iterdir())) == 1


def test_removing_takes_older_commits_and_all_shards_along(hub):
    hub.repos["org/s"] = {f"s-0000{n}-of-00002.gguf": b"shard %d" % n for n in (1, 2)}
    pull("org/s")
    hub.commit = "b" * 40
    pull("org/s")
    removal = plan_removal("org/s")
    assert (len(removal.links), len(removal.blobs), removal.num_bytes) == (4, 2, 14)
    removal.carry_out()
    assert list_models() == []


def test_a_store_that_repositories_share(hub):
    store = hub.cache / "blobs" / "ab"
    pulled = pull("org/m")
    blob = pulled.path.resolve()
    store.mkdir(parents=True)
    blob.rename(store / "shared")
    blob.symlink_to("../../blobs/ab/shared")
    other = hub.cache / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    (other / "x").symlink_to("../../blobs/ab/shared")
    assert plan_removal("org/m").num_bytes == 0
    (other / "x").unlink()
    removal = plan_removal("org/m")
    assert removal.num_bytes == len(BIG)
    removal.carry_out()
    assert not (store / "shared").exists()


def test_a_path_outside_the_cache_is_not_deleted(hub, tmp_path):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"x")
    with pytest.raises(CaudalError, match="not in the cache of downloaded models"):
        plan_removal(str(file))
    pulled = pull("org/m")
    with pytest.raises(CaudalError, match="not in the cache of downloaded models"):
        plan_removal(
            str(pulled.path.resolve()) if pulled.path.resolve().suffix else str(link_to(pulled.path, tmp_path))
        )
    assert file.exists()


def link_to(path, folder):
    link = folder / "elsewhere.gguf"
    link.symlink_to(path)
    return link
