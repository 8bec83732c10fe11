"""The pack cache: the same tokens with and without, one image for each model, and nothing damaged is ever used."""

import errno
import hashlib
import logging
import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from factory import tiny_checkpoint

native = pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.backends.cpu import pack_cache  # noqa: E402
from caudal.checkpoint import open_checkpoint  # noqa: E402
from caudal.config import EngineConfig  # noqa: E402
from caudal.engine.load import load_engine  # noqa: E402
from caudal.errors import ConfigError  # noqa: E402
from caudal.messages import AddRequest  # noqa: E402
from caudal.sampling_params import SamplingParams  # noqa: E402

UP_TO_DATE, STALE = "used", "made anew"


@pytest.fixture
def model(tmp_path):
    return tiny_checkpoint(tmp_path, "llama", "Q4_0")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "packs"


def load(model, folder):
    return load_engine(EngineConfig(model_path=str(model), num_threads=1, pack_cache=folder and str(folder)))


def mapped_bytes(engine):
    return engine._runner._backend.mapped_bytes


def answer(engine):
    engine.add_request(
        AddRequest(request_id="r", prompt_token_ids=[5, 9, 40], params=SamplingParams(temperature=0, max_tokens=24))
    )
    tokens = []
    while engine.has_work:
        tokens += [token for update in engine.step() for token in update.token_ids]
    return tokens


def image_of(folder):
    (image,) = folder.iterdir()
    assert image.suffix == ".pack"
    return image


def is_used(model, folder):
    """Load once more; say whether every matrix came from the image. The answer is right in any case."""
    engine = load(model, folder)
    assert answer(engine) == answer(load(model, None))
    mapped = mapped_bytes(engine)
    assert mapped in (0, engine.ready_info().weights_bytes)
    return UP_TO_DATE if mapped else STALE


def test_the_second_start_maps_what_the_first_packed(model, folder, caplog):
    first = load(model, folder)
    assert mapped_bytes(first) == 0
    image = image_of(folder)
    written = image.stat()
    assert is_used(model, folder) == UP_TO_DATE
    after = image.stat()
    assert (after.st_ino, after.st_mtime_ns) == (written.st_ino, written.st_mtime_ns), "it was written again"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("scheme", ["Q4_K_M", "IQ4_NL", "F16", "Q8_0"])
def test_formats_with_and_without_kernels(scheme, tmp_path, folder):
    columns = {"hidden_size": 256, "ffn_size": 256} if scheme == "Q4_K_M" else {}
    model = tiny_checkpoint(tmp_path, "qwen2", scheme, **columns)
    load(model, folder)
    assert is_used(model, folder) == UP_TO_DATE


def test_mapped_matrices_are_equal_bit_for_bit(tmp_path):
    matrix = native.PackedMatrix("Q4_0", 40, 64)
    matrix.pack(np.random.default_rng(1).integers(0, 256, 40 * 36, np.uint8), 0, 40)
    cache = pack_cache.PackCache(tmp_path, "id", "/models/m.gguf")
    cache.keep("w", matrix)
    cache.finish()
    again = pack_cache.PackCache(tmp_path, "id", "/models/m.gguf").find("w", "Q4_0", 40, 64)
    assert again.data.tobytes() == matrix.data.tobytes()
    assert again.dequantize().tobytes() == matrix.dequantize().tobytes()
    with pytest.raises(ValueError, match="not its own"):
        again.pack(np.zeros(40 * 36, np.uint8), 0, 40)
    with pytest.raises(ValueError, match="expected at least"):
        native.PackedMatrix.on("Q4_0", 40, 64, np.zeros(matrix.nbytes, np.uint8))


def test_an_image_moves_into_huge_pages_under_its_readers(tmp_path):
    """Every read gives the file's bytes, before, while and after."""
    content = np.random.default_rng(1).integers(0, 256, (70 << 20) + 12345, np.uint8)
    path = tmp_path / "image"
    content.tofile(path)
    with path.open("rb") as file:
        image = native.WeightImage(file.fileno(), content.nbytes)
    data = image.data
    wrong = []
    is_settled = threading.Event()

    def read():
        rounds = 0
        while not is_settled.is_set() or rounds == 0:
            if not np.array_equal(data, content):
                wrong.append(rounds)
            rounds += 1

    reader = threading.Thread(target=read)
    reader.start()
    moved = image.settle()
    is_settled.set()
    reader.join()
    assert not wrong
    assert np.array_equal(data, content)
    assert moved in (0, content.nbytes >> 21 << 21)
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if modes.exists() and "[never]" not in modes.read_text():
        assert moved > 0
    del image
    assert np.array_equal(data, content), "the array keeps the image"


def test_mapped_weights_are_moved_once_the_model_is_loaded(model, folder, monkeypatch):
    started = []

    class Recorder(threading.Thread):
        def start(self):
            started.append(self.name)

    monkeypatch.setattr(pack_cache.threading, "Thread", Recorder)
    load(model, folder)
    assert started == [], "what has just been packed lies in huge pages"
    load(model, folder)
    assert started == ["settle weights"]


def test_models_have_images_of_their_own(tmp_path, folder):
    models = [tiny_checkpoint(tmp_path / f"{i}.gguf", "llama", "Q4_0", seed=i) for i in range(2)]
    for model in models:
        load(model, folder)
    assert len(list(folder.iterdir())) == 2
    assert [is_used(model, folder) for model in models] == [UP_TO_DATE, UP_TO_DATE]


def test_a_model_that_changed_gets_a_new_image(model, folder):
    load(model, folder)
    size, times = model.stat().st_size, (model.stat().st_atime_ns, model.stat().st_mtime_ns)
    tiny_checkpoint(model, "llama", "Q4_0", seed=1)
    os.utime(model, ns=times)
    assert model.stat().st_size == size, "the case is the one where size and time say nothing"
    assert is_used(model, folder) == STALE
    assert is_used(model, folder) == UP_TO_DATE
    image_of(folder)


def test_an_identity_sees_header_and_every_shard(tmp_path):
    paths = [tiny_checkpoint(tmp_path / f"{i}.gguf", "llama", "Q4_0", metadata={"general.name": f"n{i}"}) for i in "ab"]
    identities = []
    for path in paths:
        with open_checkpoint(path) as checkpoint:
            checkpoint._stamps = ()
            identities.append(checkpoint.identity())
    assert identities[0] != identities[1]
    with open_checkpoint(paths[0]) as checkpoint:
        assert checkpoint.identity() == checkpoint.identity() != identities[0]


def damage(image, change):
    data = bytearray(image.read_bytes())
    change(data)
    image.unlink()
    image.write_bytes(data)


def flip(position):
    def change(data):
        data[position] ^= 0x40

    return change


def cut(size):
    def change(data):
        del data[size:]

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(flip(0), id="magic"),
        pytest.param(flip(9), id="size of the table"),
        pytest.param(flip(15), id="a giant size of the table"),
        pytest.param(flip(20), id="digest"),
        pytest.param(flip(60), id="table"),
        pytest.param(cut(0), id="empty"),
        pytest.param(cut(30), id="cut in the head"),
        pytest.param(cut(100), id="cut in the table"),
        pytest.param(cut(-1), id="cut at the end"),
        pytest.param(lambda data: data.append(0), id="longer"),
        pytest.param(lambda data: data.__setitem__(slice(8192, None), bytes(len(data) - 8192)), id="zeros"),
        pytest.param(lambda data: data.__setitem__(slice(None), os.urandom(5000)), id="noise"),
    ],
)
def test_damage_is_seen_and_mended(change, model, folder, caplog):
    load(model, folder)
    damage(image_of(folder), change)
    assert is_used(model, folder) == STALE
    assert "made anew" in caplog.text
    assert is_used(model, folder) == UP_TO_DATE
    image_of(folder)


def test_another_layout_is_made_anew(model, folder, monkeypatch, caplog):
    load(model, folder)
    monkeypatch.setattr(native, "PACK_LAYOUT_VERSION", native.PACK_LAYOUT_VERSION + 1)
    assert is_used(model, folder) == STALE
    assert f"their layout is {native.PACK_LAYOUT_VERSION - 1}" in caplog.text
    assert is_used(model, folder) == UP_TO_DATE


def test_a_table_that_lies_is_seen(model, folder, monkeypatch):
    """Its digest is right: written by a program with a bug, or by someone who means harm."""
    table_of = pack_cache.PackCache._table
    for lie in ({"start": 1 << 40}, {"start": -4096}, {"start": 100}, {"num_bytes": 64}, {"rows": -1}, {"cols": 4096}):

        def lying(self, first, lie=lie):
            table = table_of(self, first)
            entries = [*table.entries]
            changed = {name: getattr(entries[1], name) for name in entries[1].__struct_fields__} | lie
            entries[1] = type(entries[1])(**changed)
            return type(table)(table.layout, table.model, table.file_bytes, entries)

        with monkeypatch.context() as patch:
            patch.setattr(pack_cache.PackCache, "_table", lying)
            patch.setattr(pack_cache.PackCache, "_write_to", honest_body)
            load(model, folder)
        engine = load(model, folder)
        assert mapped_bytes(engine) < engine.ready_info().weights_bytes, lie
        assert answer(engine) == answer(load(model, None))
        assert is_used(model, folder) == UP_TO_DATE
        image_of(folder).unlink()


def honest_body(self, file):
    """Write the matrices where they belong, whatever the table says."""
    payload = msgspec.msgpack.encode(self._table(1 << 16))
    file.write(pack_cache._HEAD.pack(pack_cache.MAGIC, len(payload), hashlib.blake2b(payload, digest_size=32).digest()))
    file.write(payload)
    start = 1 << 16
    for matrix in self._placed.values():
        file.write(bytes(start - file.tell()))
        file.write(memoryview(matrix.data))
        start = pack_cache._up(start + matrix.nbytes + native.PACK_SLACK)
    file.write(bytes(start - file.tell()))
    return start


def test_a_full_disk_is_a_warning(model, folder, monkeypatch, caplog):
    def full(self, file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pack_cache.PackCache, "_write_to", full)
    engine = load(model, folder)
    assert answer(engine) == answer(load(model, None))
    assert "No space left on device" in caplog.text
    assert list(folder.iterdir()) == [], "half an image was left"


def test_a_folder_that_cannot_be_is_a_warning(model, tmp_path, caplog):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("x")
    assert is_used(model, in_the_way / "packs") == STALE
    assert "cannot be kept" in caplog.text


def test_what_a_crash_left_behind_goes_and_what_another_process_writes_stays(model, folder):
    load(model, folder)
    image = image_of(folder)
    image.unlink()
    old, new = Path(f"{image}.old.part"), Path(f"{image}.new.part")
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    load(model, folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([image.name, new.name])


def test_a_running_engine_outlives_its_image(model, folder):
    load(model, folder)
    engine = load(model, folder)
    expected = answer(load(model, None))
    image_of(folder).unlink()
    tiny_checkpoint(model, "llama", "Q4_0", seed=3)
    load(model, folder)
    assert answer(engine) == expected


def test_auto_is_in_the_cache_directory(model, tmp_path, monkeypatch):
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path / "cache"))
    load(model, "auto")
    image_of(tmp_path / "cache" / "packed")


def test_only_the_cpu_backend_packs():
    with pytest.raises(ConfigError, match="pack_cache is for backend 'cpu'"):
        EngineConfig(model_path="m", pack_cache="x", backend="reference")
