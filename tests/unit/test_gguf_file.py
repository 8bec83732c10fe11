"""Reading GGUF: what good files give, and what bad ones are told."""

import os
import re
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from factory import tiny_checkpoint
from raw_gguf import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    array,
    gguf,
    pair,
    tensor,
    text,
)

from caudal.checkpoint import GGUFFile, open_checkpoint
from caudal.checkpoint.gguf_file import open_gguf
from caudal.checkpoint.gguf_writer import write_gguf
from caudal.errors import CheckpointError, UnsupportedFormat

TYPES = {U8: 200, I8: -5, U16: 60000, I16: -300, U32: 1 << 31, I32: -(1 << 30), F32: 0.5, BOOL: True}
TYPES |= {STRING: "añ\n", U64: 1 << 63, I64: -(1 << 62), F64: 0.1}
ALIGN = "general.alignment"
FOUR = np.arange(4, dtype="<f4").tobytes().ljust(32, b"\0")


def saved(tmp_path, raw, name="model.gguf"):
    path = tmp_path / name
    path.write_bytes(raw)
    return path


# Good files.


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path, version):
    pairs = [pair(f"k{kind}", kind, value) for kind, value in TYPES.items()]
    pairs += [array(f"a{kind}", kind, [value] * 3) for kind, value in TYPES.items()]
    pairs += [array("empty", kind, []) for kind in [STRING]]
    found = open_gguf(saved(tmp_path, gguf(pairs, version=version))).metadata
    expected = {f"k{kind}": value for kind, value in TYPES.items()}
    expected |= {f"a{kind}": [value] * 3 for kind, value in TYPES.items()} | {"empty": []}
    assert dict(found) == expected
    assert all(type(found[key]) is type(value) for key, value in expected.items())
    with pytest.raises(TypeError):
        found["k0"] = 1


def test_tensors_are_read_only_views_in_row_major_shape(tmp_path):
    values = np.arange(6, dtype="<f4")
    q8 = np.arange(34, dtype=np.uint8)
    tensors = [tensor("m", (3, 2)), tensor("q", (32, 1), 8, 32)]
    raw = gguf([], tensors, values.tobytes().ljust(32, b"\0") + q8.tobytes())
    with open_gguf(saved(tmp_path, raw)) as model:
        assert list(model.tensors) == ["m", "q"]
        assert model.tensors["m"].shape == (2, 3)
        assert model.tensors["m"].dequantize().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert (model.tensors["q"].format, model.tensors["q"].row_bytes) == ("Q8_0", 34)
        assert model.tensors["q"].data.tolist() == q8.tolist()
        assert not model.tensors["m"].data.flags.writeable
        assert model.total_tensor_bytes == 24 + 34
        assert model.tensors["m"].rows(1, 2).dequantize().tolist() == [[3, 4, 5]]


def test_tensors_outlive_the_file(tmp_path):
    path = saved(tmp_path, gguf([], [tensor("t", (4,))], FOUR))
    with open_gguf(path) as model:
        kept = model.tensors["t"]
    assert not model.tensors
    path.unlink()
    assert kept.dequantize().tolist() == [0, 1, 2, 3]


def resident_file_bytes():
    """Memory of this process that is mapped from files."""
    return int(re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs /proc to count memory: runs on Linux, CI included"
)
def test_a_released_tensor_takes_no_memory_and_stays_readable(tmp_path):
    num_bytes = 32 << 20
    values = np.arange(num_bytes, dtype=np.uint32).astype(np.uint8)
    write_gguf(tmp_path / "m.gguf", {}, {"w": ("F32", (num_bytes // 4,), values), "x": ("F32", (1,), values[:4])})
    with open_checkpoint(tmp_path / "m.gguf") as file:
        tensor = file.tensors["w"]
        tensor.data.sum()
        before = resident_file_bytes()
        tensor.release()
        assert before - resident_file_bytes() > 0.9 * num_bytes
        assert np.array_equal(tensor.data, values)
        assert np.array_equal(file.tensors["x"].data, values[:4])


def test_gaps_and_any_order_are_accepted(tmp_path):
    raw = gguf([], [tensor("b", (4,), 0, 96), tensor("a", (4,), 0, 32)], bytes(32) + FOUR + bytes(32) + FOUR)
    model = open_gguf(saved(tmp_path, raw))
    assert model.tensors["b"].dequantize().tolist() == model.tensors["a"].dequantize().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("align", [1, 8, 64, 4096])
def test_alignment(tmp_path, align):
    pairs = [pair(ALIGN, U32, align)]
    model = open_gguf(saved(tmp_path, gguf(pairs, [tensor("t", (4,))], FOUR[:16], align=align)))
    assert model.tensors["t"].dequantize().tolist() == [0, 1, 2, 3]


def test_an_empty_header_and_a_scalar_tensor(tmp_path):
    assert isinstance(open_checkpoint(str(saved(tmp_path, gguf()))), GGUFFile)
    assert open_gguf(saved(tmp_path, gguf([], [tensor("t", ())], FOUR))).tensors["t"].shape == (1,)


def test_strings_that_are_not_utf8_do_not_stop_a_model(tmp_path):
    model = open_gguf(saved(tmp_path, gguf([pair("general.description", STRING, b"ok \xff")])))
    assert model.metadata["general.description"] == "ok \ufffd"


def test_a_vocabulary_of_262k_in_a_second(tmp_path):
    tokens = [f"token {index}" for index in range(262_144)]
    raw = gguf([array("t", STRING, tokens), array("s", F32, [0.0] * len(tokens)), array("m", STRING, tokens * 2)])
    path = saved(tmp_path, raw)
    start = time.process_time()
    model = open_gguf(path)
    assert time.process_time() - start < 1.0
    assert model.metadata["t"] == tokens


def test_real_models_open_quickly():
    folder = Path(os.environ.get("CAUDAL_TEST_MODELS") or "~/.cache/caudal-test-models").expanduser()
    files = sorted(folder.glob("*.gguf"))
    if not files:
        pytest.skip(f"no test models in {folder}: runs after `make models`, as in CI")
    for file in files:
        start = time.process_time()
        with open_gguf(file) as model:
            assert time.process_time() - start < 1.0
            assert "general.architecture" in model.metadata
            assert 0 < model.total_tensor_bytes < file.stat().st_size


# Bad files. Each case: the bytes, and words of the error. The names are those of the cases that GGUF readers share.

MORE = 1 << 40
T4 = tensor("t", (4,))
BAD = {
    "empty file": (b"", "the file has 0 bytes"),
    "three bytes": (b"GGU", "the file has 3 bytes"),
    "magic alone": (b"GGUF", "ends inside the version"),
    "no counts": (b"GGUF\3\0\0\0", "ends inside the number of tensors"),
    "header bad magic": (gguf(magic=b"FUGU"), "not a GGUF file.*FUGU"),
    "web page": (b"<!DOCTYPE html><html></html>", "web page"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip archive"),
    "old ggjt": (b"tjgg" + bytes(100), "GGJT"),
    "header bad version 0": (gguf(version=0), "GGUF version 0"),
    "header bad version 1": (gguf(version=1), "version 1"),
    "header bad version future": (gguf(version=4), "GGUF version 4; Caudal reads versions 2 and 3"),
    "big endian": (b"GGUF" + struct.pack(">Iqq", 3, 0, 0), "big-endian"),
    "header bad n_tensors": (gguf(num_tensors=-1), "-1 tensors"),
    "header huge n_tensors": (gguf(num_tensors=1 << 62), "tensors; expected 0 to"),
    "header many n_tensors": (gguf(num_tensors=200_000), "ends inside the list of tensors"),
    "header bad n_kv": (gguf(num_pairs=-1), "-1 metadata keys"),
    "header huge n_kv": (gguf(num_pairs=1 << 62), "metadata keys; expected 0 to"),
    "header many n_kv": (gguf(num_pairs=60_000), "ends inside the metadata"),
    "kv bad key size": (gguf([struct.pack("<Q", 1 << 62) + bytes(20)]), "metadata key 0 is said to have"),
    "kv key past end": (gguf([struct.pack("<Q", 60_000) + bytes(20)]), "ends inside metadata key 0"),
    "kv empty key": (gguf([pair("", U8, 1) + bytes(9)]), "metadata key 0 is empty"),
    "kv key not utf8": (gguf([pair(b"\xff\xfe", U32, 1)]), "metadata key 0 is not UTF-8"),
    "kv bad type": (gguf([text("key") + struct.pack("<IQ", 13, 0)]), "value of key has type 13"),
    "kv duplicate key": (gguf([pair("key", U32, 1), pair("key", U32, 1)]), "'key' occurs twice"),
    "kv value past end": (
        gguf([text("a longer key") + struct.pack("<I", U64) + b"abc"]),
        "inside the value of a longer",
    ),
    "kv long string": (gguf([text("key") + struct.pack("<IQ", STRING, MORE) + b"abc"]), "value of key is said to have"),
    "kv string past end": (gguf([text("key") + struct.pack("<IQ", STRING, 5000) + b"abc"]), "inside the value of key"),
    "kv nested array": (gguf([text("key") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]), "elements of arrays"),
    "kv bad array type": (gguf([text("key") + struct.pack("<IIQ", ARRAY, 99, 1)]), "elements of type 99"),
    "kv long array": (gguf([text("key") + struct.pack("<IIQ", ARRAY, U8, MORE)]), f"said to have {MORE} elements"),
    "kv array past end": (gguf([text("key") + struct.pack("<IIQ", ARRAY, U64, 1000)]), "inside the array key"),
    "kv strings past end": (gguf([text("key") + struct.pack("<IIQ", ARRAY, STRING, 1000)]), "inside the array key"),
    "kv strings cut": (
        gguf([text("k") + struct.pack("<IIQQ", ARRAY, STRING, 2, 90) + bytes(30)]),
        "string 0 of the arr",
    ),
    "kv second string cut": (
        gguf([text("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + text("abcdefghi") + b"\1"]),
        "at string 1 of 2",
    ),
    "kv bad align": (gguf([pair(ALIGN, U32, 13)]), "alignment is 13; expected a power of two"),
    "kv zero align": (gguf([pair(ALIGN, U32, 0)]), "alignment is 0"),
    "kv huge align": (gguf([pair(ALIGN, U32, 1 << 31)]), "expected a power of two up to"),
    "kv wrong type align": (gguf([pair(ALIGN, U64, 32)]), "value type 10; expected 4"),
    "kv text align": (gguf([pair(ALIGN, STRING, "32")]), "value type 8; expected 4"),
    "tensors bad name size": (gguf([], [tensor("x" * 65, (4,))], FOUR), "tensor 0 is said to have 65 bytes"),
    "tensors empty name": (gguf([], [tensor("", (4,))], FOUR), "tensor 0 has no name"),
    "tensors name not utf8": (gguf([], [tensor(b"\xff", (4,))], FOUR), "tensor 0 is not UTF-8"),
    "tensors bad n_dims": (gguf([], [tensor("t", (1, 1, 1, 1, 1))], FOUR), "5 dimensions; expected at most 4"),
    "tensors huge n_dims": (gguf([], [text("t") + b"\xff" * 20], FOUR), "4294967295 dimensions"),
    "tensors bad shape": (gguf([], [tensor("t", (-4,))], FOUR), "shape .-4,.; expected positive"),
    "tensors zero dim": (gguf([], [tensor("t", (4, 0))], FOUR), "shape .4, 0.; expected positive"),
    "tensors ne too big": (gguf([], [tensor("t", (1 << 62, 1 << 62))], FOUR), "product is below 2.63"),
    "tensors nbytes too big": (gguf([], [tensor("t", (1 << 60, 4))], FOUR), "should take bytes"),
    "tensors nbytes pad wrap": (gguf([], [tensor("t", ((1 << 61) + 32, 2))], FOUR), "should take bytes"),
    "tensors bad type": (gguf([], [tensor("t", (4,), 200)], FOUR), "type 200 .no type known."),
    "tensors removed type": (gguf([], [tensor("t", (32,), 4)], FOUR), "type 4 .no type known."),
    "tensors unknown format": (gguf([], [tensor("t", (256,), 16)], FOUR * 3), "'t' is stored as type 16 .IQ2_XXS."),
    "tensors row of half a block": (gguf([], [tensor("t", (48,), 2)], FOUR), "rows of 48.*Q4_0 needs a multiple of 32"),
    "tensors bad offset": (gguf([], [tensor("t", (4,), 0, 16)], FOUR * 2), "offset 16, which is not a multiple"),
    "tensors huge offset": (gguf([], [tensor("t", (4,), 0, (1 << 64) - 32)], FOUR), "should take bytes"),
    "tensors duplicate name": (gguf([], [T4, tensor("t", (4,), 0, 32)], FOUR * 2), "tensor 't' is listed twice"),
    "tensors overlap": (gguf([], [T4, tensor("u", (4,), 0, 0)], FOUR), "'t' and 'u' overlap: the first takes bytes"),
    "tensors overlap in part": (gguf([], [tensor("t", (12,)), tensor("u", (4,), 0, 32)], FOUR * 2), "overlap"),
    "tensors inconsistent align": (
        gguf([pair(ALIGN, U32, 64)], [T4, tensor("u", (4,), 0, 32)], FOUR * 2, align=64),
        "not a multiple of the alignment 64",
    ),
    "tensors cut in the list": (gguf([], [T4])[:50], "ends inside"),
    "data missing": (gguf([], [T4]), "should take bytes"),
    "data not enough": (gguf([], [T4], FOUR[:15]), "should take bytes"),
    "data bad align": (gguf([pair(ALIGN, U32, 4096)], [T4], FOUR), "should take bytes 4096"),
    "data mem size overflow": (gguf([], [tensor("t", ((1 << 63) - 32,))], FOUR), "should take bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_name_the_place_and_the_fact(tmp_path, case):
    raw, words = BAD[case]
    path = saved(tmp_path, raw)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=words) as error:
            open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert error.value.path == path
    assert str(path) in str(error.value)
    assert 0 <= error.value.offset <= len(raw)


@pytest.mark.parametrize("case", ["tensors bad type", "tensors removed type", "tensors unknown format"])
def test_an_unknown_tensor_type_is_an_unsupported_format(tmp_path, case):
    with pytest.raises(UnsupportedFormat, match="it reads F32, F16"):
        open_gguf(saved(tmp_path, BAD[case][0]))


def test_every_truncation_is_refused(tmp_path):
    pairs = [pair("key", STRING, "value"), array("a", U16, [1, 2, 3]), array("s", STRING, ["x", "yz"])]
    raw = gguf(pairs, [T4, tensor("q", (32,), 8, 32)], FOUR + bytes(34))
    open_gguf(saved(tmp_path, raw))
    for length in range(len(raw)):
        with pytest.raises(CheckpointError):
            open_gguf(saved(tmp_path, raw[:length]))


def test_arrays_share_one_allowance(tmp_path):
    """Every array alone would be accepted; together they would cost far more memory than the file has bytes."""
    big = struct.pack("<IIQ", ARRAY, U8, 5 << 20) + bytes(5 << 20)
    with pytest.raises(CheckpointError, match="array b is said to have 5242880 elements; at most 3145728 more"):
        open_gguf(saved(tmp_path, gguf([text("a") + big, text("b") + big])))


def test_things_that_are_no_files(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="this is a directory"):
        open_gguf(tmp_path)
    with pytest.raises(CheckpointError, match="null"):
        open_gguf("a\0b.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(CheckpointError, match="no regular file"):
            open_gguf(tmp_path / "pipe.gguf")


# Split files.


def split_pairs(number, count, total=3):
    return [pair("split.no", U16, number), pair("split.count", U16, count), pair("split.tensors.count", I32, total)]


def save_shards(tmp_path, count=3, **wrong):
    for number in range(count):
        pairs = split_pairs(number, count, **wrong)
        pairs += [pair("general.architecture", STRING, "llama")] if number == 0 else []
        raw = gguf(pairs, [tensor(f"t{number}", (4,))], FOUR)
        saved(tmp_path, raw, f"big-{number + 1:05}-of-{count:05}.gguf")
    return tmp_path / f"big-00001-of-{count:05}.gguf"


def test_split_files(tmp_path):
    model = open_gguf(save_shards(tmp_path))
    assert list(model.tensors) == ["t0", "t1", "t2"]
    assert model.metadata["general.architecture"] == "llama"
    assert all(t.dequantize().tolist() == [0, 1, 2, 3] for t in model.tensors.values())


def test_split_file_opened_at_a_later_shard(tmp_path):
    first = save_shards(tmp_path)
    with pytest.raises(CheckpointError, match=r"not the first of 3 shards; open big-00001-of-00003.gguf"):
        open_gguf(first.with_name("big-00002-of-00003.gguf"))


def test_split_file_with_a_missing_shard(tmp_path):
    first = save_shards(tmp_path)
    first.with_name("big-00003-of-00003.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"shard big-00003-of-00003.gguf of 3 is missing"):
        open_gguf(first)


def test_split_file_with_another_name(tmp_path):
    first = save_shards(tmp_path)
    with pytest.raises(CheckpointError, match=r"expected a name that ends in -00001-of-00003.gguf"):
        open_gguf(first.rename(tmp_path / "renamed.gguf"))


@pytest.mark.parametrize(
    ("pairs", "tensors", "words"),
    [
        (split_pairs(2, 3), [tensor("t1", (4,))], "split.no and split.count are 2 and 3; expected 1 and 3"),
        ([], [tensor("t1", (4,))], "split.no and split.count are -1 and -1"),
        (split_pairs(1, 3), [tensor("t0", (4,))], "tensor 't0' is also in an earlier shard"),
        (split_pairs(1, 3), [tensor("t1", (8, 4))], "should take bytes"),
        ([pair("split.no", STRING, "1")], [T4], "split.no is '1'; expected a whole number"),
    ],
)
def test_a_bad_second_shard(tmp_path, pairs, tensors, words):
    first = save_shards(tmp_path)
    second = saved(tmp_path, gguf(pairs, tensors, FOUR), "big-00002-of-00003.gguf")
    with pytest.raises(CheckpointError, match=words) as error:
        open_gguf(first)
    assert error.value.path == second


def test_split_files_with_too_few_tensors(tmp_path):
    with pytest.raises(CheckpointError, match=r"split.tensors.count is 7, but the 3 shards hold 3 tensors"):
        open_gguf(save_shards(tmp_path, total=7))


def test_the_gguf_package_reads_the_same(tmp_path):
    reader = pytest.importorskip(
        "gguf", reason="the gguf package, an independent reader, is not installed: runs with the test extra, as in CI"
    ).GGUFReader
    path = tiny_checkpoint(tmp_path, scheme="Q4_K_M")
    model, other = open_gguf(path), reader(path)
    assert [t.name for t in other.tensors] == list(model.tensors)
    for found in other.tensors:
        ours = model.tensors[found.name]
        assert tuple(found.shape[::-1]) == ours.shape
        assert found.tensor_type.name == ours.format
        assert np.array_equal(found.data.reshape(-1).view(np.uint8), ours.data)
    assert {key: field.contents() for key, field in other.fields.items() if not key.startswith("GGUF.")} == dict(
        model.metadata
    )
