"""Safetensors files that lie are refused with what is wrong; files that do not are read to the byte."""

import json

import pytest
from hf_folders import write_safetensors
from hypothesis import given
from hypothesis import strategies as st

from caudal.checkpoint.safetensors_file import map_safetensors
from caudal.errors import CheckpointError

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def write(path, header, body=bytes(8)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_arrays_come_back(tmp_path):
    arrays = {"b": ("BF16", (2, 3), bytes(range(12))), "a": ("F32", (), b"\0\0\x80?"), "none": ("I8", (0, 4), b"")}
    write_safetensors(tmp_path / "m", arrays)
    found = map_safetensors(tmp_path / "m")
    assert {name: (a.dtype, a.shape, a.data.tobytes()) for name, a in found.items()} == arrays
    assert not any(array.data.flags.writeable for array in found.values())


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F99"}, "type 'F99'"),
        ({"dtype": None}, "type 'None'"),
        ({"shape": [3]}, r"takes 12 bytes; its data_offsets give it 8"),
        ({"shape": [-2]}, "shape"),
        ({"shape": [True, 2]}, "shape"),
        ({"shape": [1] * 9 + [2]}, "shape"),
        ({"shape": [2**47, 2**47]}, "takes"),
        ({"data_offsets": [0]}, "data_offsets"),
        ({"data_offsets": [8, 0]}, "gives? it"),
        ({"data_offsets": [8, 16]}, "ends at byte"),
    ],
)
def test_an_entry_that_is_wrong(tmp_path, entry, words):
    with pytest.raises(CheckpointError, match=f"'a'.*{words}"):
        map_safetensors(write(tmp_path / "m", {"a": GOOD["a"] | entry}))


@pytest.mark.parametrize(
    ("header", "body", "words"),
    [
        (b"{", bytes(8), "no JSON"),
        (b"[]", bytes(8), "is a list"),
        (b"[" * 100_000, bytes(8), "no JSON"),
        (b'{"a": {}, "a": {}}', bytes(8), "two entries 'a'"),
        (GOOD, bytes(9), "1 bytes behind the last"),
        (GOOD | {"b": GOOD["a"]}, bytes(8), "overlap"),
        ({"a": GOOD["a"] | {"data_offsets": [4, 12]}}, bytes(12), "4 bytes before the first"),
        (GOOD | {"b": GOOD["a"] | {"data_offsets": [12, 20]}}, bytes(20), "hole"),
        ({}, b"x", "1 bytes behind"),
    ],
)
def test_a_header_that_is_wrong(tmp_path, header, body, words):
    with pytest.raises(CheckpointError, match=words):
        map_safetensors(write(tmp_path / "m", header, body))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes, too few"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(40), "PyTorch checkpoint"),
        (b"\xff" * 40, "the header should have"),
    ],
)
def test_another_file(tmp_path, data, words):
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        map_safetensors(tmp_path / "m")


@given(st.data())
def test_no_damage_does_more_than_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "m"
    write_safetensors(path, {"a": ("F32", (2,), bytes(8)), "b": ("U8", (4,), bytes(4))})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        arrays = map_safetensors(path)
    except CheckpointError:
        return
    assert all(array.start + array.data.nbytes <= path.stat().st_size for array in arrays.values())
