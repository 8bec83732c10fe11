"""Downloads that several requests watch, and what changes the models for clients. No HTTP and no hub."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_openai_routes import until

from caudal.errors import EngineUnavailable, LibraryError, Overloaded
from caudal.hub.library_names import copy_name, pulled_name
from caudal.hub.partial_file import WantedFile
from caudal.server.model_catalog import find_model
from caudal.server.model_changes import MAX_PULLS, ModelChanges
from caudal.server.model_events import LOADED, ModelStatus
from caudal.server.ollama.pull_answer import PullLines
from caudal.server.settings import ServedModel

FILES = [
    WantedFile(name="m.gguf", num_bytes=1000, digest="ab" * 32),
    WantedFile(name="s.gguf", num_bytes=9, digest="c" * 40),
]


class FakeLibrary:
    """A library whose pulls bring a quarter for each release of `go_on`, and then fail if there is an error."""

    def __init__(self):
        self.files = {"old": "old.gguf"}
        self.pulls, self.ended, self.calls = [], [], []
        self.go_on = threading.Semaphore(0)
        self.error = None

    pulled_name = staticmethod(pulled_name)
    copy_name = staticmethod(copy_name)

    def check_ours(self, name, path):
        assert path
        if name == "named":
            raise LibraryError("given by name", "fixed")

    def pull(self, name, begin, progress):
        self.pulls.append(name)
        try:
            self._bring(begin, progress)
        except BaseException as error:
            self.ended.append(error)
            raise
        self.ended.append(None)
        self.files[pulled_name(name)] = "new.gguf"

    def _bring(self, begin, progress):
        begin(FILES)
        for done in range(0, 1000, 250):
            progress("m.gguf", done, 1000)
            self.go_on.acquire(timeout=20)
            if self.error is not None:
                raise self.error
        progress("m.gguf", 1000, 1000)

    def copy(self, name, path, destination):
        self.calls.append(("copy", name, str(path), destination))
        self.files[destination] = str(path)

    def delete(self, name, path):
        self.calls.append(("delete", name, str(path)))
        if self.error is not None:
            raise self.error
        del self.files[name]


class FakeModels:
    """The models that the library's files are. Those in memory stay there until they are unloaded."""

    def __init__(self, library, *loaded):
        self.library, self.loaded, self.unloaded, self.looked = library, list(loaded), [], 0
        self.seen = []

    async def look_again(self):
        self.looked += 1
        self.seen = [ServedModel(name=name, path=path) for name, path in self.library.files.items()]

    async def refresh(self):
        if not self.looked:
            await self.look_again()

    def find(self, name):
        return find_model(self.seen, name)

    def statuses(self):
        return [ModelStatus(name=name, state=LOADED, since=0.0) for name in self.loaded]

    async def unload(self, name):
        assert self.find(name) is None
        self.unloaded.append(name)


@pytest.fixture
async def place():
    library = FakeLibrary()
    models = FakeModels(library, "old")
    await models.look_again()
    changes = ModelChanges(library, models, models.look_again)
    yield SimpleNamespace(library=library, models=models, changes=changes)
    changes.leave()
    library.go_on.release(1000)


async def watch(pull):
    """Wait for the end; return what it said."""
    with pull.watched():
        await asyncio.wait((pull.task,))
    return pull.task.exception()


def advance(place, quarters):
    place.library.go_on.release(quarters)


async def test_two_who_want_the_same_share_one_download(place):
    first, second = place.changes.pull("org/m"), place.changes.pull("Org/M:latest")
    assert first is second
    watching = [asyncio.create_task(watch(pull)) for pull in (first, second)]
    await until(lambda: first.files and first.files[0].num_done == 0)
    looked = place.models.looked
    advance(place, 4)
    assert await asyncio.gather(*watching) == [None, None]
    assert place.library.pulls == ["org/m"]
    assert [(f.digest, f.num_bytes, f.num_done) for f in first.files] == [
        ("sha256:" + "ab" * 32, 1000, 1000), ("s.gguf", 9, 9),
    ]  # fmt: skip
    assert place.models.looked == looked + 1
    assert place.models.find("org/m").name == "org/m"  # listed before anybody is told that it is done
    advance(place, 4)
    assert place.changes.pull("org/m") is not first  # the next is a new one


async def test_a_watcher_who_leaves_does_not_end_it_for_the_others(place):
    pull = place.changes.pull("org/m")
    watching = [asyncio.create_task(watch(pull)) for _ in range(3)]
    await until(lambda: pull.files)
    watching[0].cancel()
    watching[2].cancel()
    await asyncio.gather(watching[0], watching[2], return_exceptions=True)
    assert not pull.is_ending
    advance(place, 4)
    assert await watching[1] is None
    assert place.library.ended == [None]


async def test_the_last_one_who_leaves_ends_it(place):
    pull = place.changes.pull("org/m")
    watching = [asyncio.create_task(watch(pull)) for _ in range(2)]
    await until(lambda: pull.files and pull.files[0].num_done == 0)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    assert pull.is_ending
    with pytest.raises(Overloaded, match="is just being ended") as error:
        place.changes.pull("org/m")
    assert error.value.retry_after_s > 0
    advance(place, 1)
    await until(pull.task.done)
    assert [type(error).__name__ for error in place.library.ended] == ["PullEnded"]
    assert isinstance(pull.task.exception(), EngineUnavailable)
    again = place.changes.pull("org/m")
    assert not again.is_ending
    advance(place, 4)
    assert await watch(again) is None


async def test_a_pull_that_is_done_when_its_last_watcher_leaves_was_not_ended(place):
    pull = place.changes.pull("org/m")
    advance(place, 4)
    assert await watch(pull) is None
    assert not pull.is_ending


async def test_an_error_reaches_everybody(place):
    place.library.error = LibraryError("the disk is full", "full")
    pull = place.changes.pull("org/m")
    watching = [asyncio.create_task(watch(pull)) for _ in range(3)]
    await until(lambda: pull.files)
    advance(place, 1)
    assert await asyncio.gather(*watching) == [place.library.error] * 3
    assert place.models.looked == 1
    place.library.error = None
    advance(place, 4)
    assert await watch(place.changes.pull("org/m")) is None


async def test_what_is_new_wakes_who_waits_and_silence_lets_them_go(place):
    pull = place.changes.pull("org/m")
    with pull.watched():
        assert await pull.wait(20) is False
        assert pull.files[0].num_done == 0
        assert await pull.wait(0.01) is False
        waiting = asyncio.create_task(pull.wait(20))
        advance(place, 4)
        await waiting
        await until(pull.task.done)
        assert await pull.wait(20) is True


async def test_lines_tell_what_is_new_and_nothing_twice(place):
    pull, lines = place.changes.pull("org/m"), PullLines()
    assert lines.news(pull.files) == b""
    assert lines.ping() == b'{"status":"pulling manifest"}\n'
    with pull.watched():
        await until(lambda: pull.files and pull.files[0].num_done == 0)
        told = lines.news(pull.files)
        digest = "ab" * 32
        assert told.decode() == (
            f'{{"status":"pulling {digest[:12]}","digest":"sha256:{digest}","total":1000,"completed":0}}\n'
        )
        assert lines.news(pull.files) == b""
        assert lines.ping() == told
        advance(place, 4)
        await asyncio.wait((pull.task,))
    assert lines.news(pull.files).count(b"\n") == 2
    assert b'"pulling s.gguf"' in lines.ping()


async def test_few_are_fetched_at_a_time(place):
    pulls = [place.changes.pull(f"org/m{i}") for i in range(MAX_PULLS)]
    watching = [asyncio.create_task(watch(pull)) for pull in pulls]
    with pytest.raises(Overloaded, match=f"{MAX_PULLS} models are being pulled already") as error:
        place.changes.pull("org/more")
    assert error.value.retry_after_s > 0
    assert place.changes.pull("org/m0") is pulls[0]
    advance(place, 4 * MAX_PULLS)
    assert await asyncio.gather(*watching) == [None] * MAX_PULLS
    advance(place, 4)
    assert await watch(place.changes.pull("org/more")) is None


async def test_a_server_that_leaves_ends_all_of_them_at_once_and_begins_none(place):
    pull = place.changes.pull("org/m")
    watching = asyncio.create_task(watch(pull))
    await until(lambda: pull.files)
    place.changes.leave()
    async with asyncio.timeout(5):  # although its thread still waits
        assert "shutting down; pull again to go on" in str(await watching)
    for name in ("org/m", "org/n"):
        with pytest.raises(EngineUnavailable, match="shutting down"):
            place.changes.pull(name)


async def test_what_is_no_name_begins_nothing(place):
    with pytest.raises(LibraryError, match="begins with a dot"):
        place.changes.pull("../m")
    assert place.library.pulls == []


async def test_a_copy_is_listed_when_it_is_said_to_be_done(place):
    await place.changes.copy(place.models.find("old"), "mine:latest")
    assert place.library.calls == [("copy", "old", "old.gguf", "mine")]
    assert place.models.find("mine").path == "old.gguf"


@pytest.mark.parametrize("destination", ["taken", "TAKEN", "taken:latest", "last"])
async def test_a_copy_takes_no_name_that_means_another_model(place, tmp_path, destination):
    for name in ("taken", "sub/last"):
        place.library.files[name] = str(tmp_path / "other")
    (tmp_path / "other").touch()
    await place.models.look_again()
    with pytest.raises(LibraryError, match="already means a model") as error:
        await place.changes.copy(place.models.find("old"), destination)
    assert error.value.reason == "exists"
    assert "sub/" not in str(error.value)
    assert place.library.calls == []


async def test_a_copy_may_be_called_what_its_model_already_means(place, tmp_path):
    file = tmp_path / "m"
    file.touch()
    place.library.files["org/m"] = str(file)
    await place.models.look_again()
    source = place.models.find("m")
    assert source.name == "org/m"
    await place.changes.copy(source, "m")
    await place.changes.copy(source, "m")
    assert place.library.calls == [("copy", "org/m", str(file), "m")]


async def test_a_copy_of_a_model_given_by_name(place):
    with pytest.raises(LibraryError, match="given by name"):
        await place.changes.copy(ServedModel(name="named", path="x"), "mine")


async def test_a_deleted_model_is_unloaded_once_nobody_can_ask_for_it(place):
    await place.changes.delete(place.models.find("old"))
    assert place.library.calls == [("delete", "old", "old.gguf")]
    assert place.models.unloaded == ["old"]  # FakeModels.unload has seen that its file has gone


async def test_a_deleted_model_that_is_not_in_memory_is_not_unloaded(place):
    place.models.loaded = []
    await place.changes.delete(place.models.find("old"))
    assert place.models.unloaded == []


async def test_a_model_that_cannot_be_deleted_stays_in_memory(place):
    place.library.error = LibraryError("busy", "busy")
    looked = place.models.looked
    with pytest.raises(LibraryError, match="busy"):
        await place.changes.delete(place.models.find("old"))
    assert place.models.unloaded == []
    assert place.models.looked == looked + 1
    assert Path(place.models.find("old").path) == Path("old.gguf")
