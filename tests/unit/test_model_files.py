"""The model files of a folder: found, grouped, read once, and listed with what is wrong with them."""

from __future__ import annotations

import os

import pytest
from factory import tiny_checkpoint

from caudal.hub import model_files
from caudal.hub.model_files import ModelFiles, facts_of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    tiny_checkpoint(tmp_path / "one.gguf", context_length=256)
    tiny_checkpoint(tmp_path / "sub" / "two-Q8_0.gguf", arch="qwen3")
    (tmp_path / "broken.gguf").write_bytes(b"GGML not a model")
    (tmp_path / "cut-00001-of-00002.gguf").write_bytes((tmp_path / "one.gguf").read_bytes()[:1000])
    (tmp_path / "cut-00002-of-00002.gguf").write_bytes(b"x" * 24)
    (tmp_path / "mmproj-one.gguf").write_bytes(b"x")
    (tmp_path / "readme.txt").write_text("x")
    return tmp_path


def test_what_a_folder_holds(folder):
    found = {file.name: file for file in ModelFiles([], folder).look()}
    assert list(found) == ["broken", "cut", "one", "sub/two-Q8_0"]
    assert found["one"].facts.context_length == 256
    assert found["one"].facts.error is None
    assert found["one"].size_bytes == (folder / "one.gguf").stat().st_size
    assert found["one"].facts.kv_bytes_per_token == 2 * 2 * (16 + 16) * 2  # layers, KV heads, key and value, bytes
    assert found["cut"].size_bytes == 1024
    assert "it starts with b'GGML', expected b'GGUF'" in found["broken"].facts.error
    assert str(folder) not in found["broken"].facts.error
    assert found["cut"].facts.error


def test_named_models_come_first_and_once(folder):
    named = [("mine", folder / "sub" / "two-Q8_0.gguf"), ("one", folder / "broken.gguf")]
    names = [(file.name, file.path.name) for file in ModelFiles(named, folder).look()]
    assert names[:2] == [("mine", "two-Q8_0.gguf"), ("one", "broken.gguf")]
    assert names[2:] == [("cut", "cut-00001-of-00002.gguf"), ("one.gguf", "one.gguf")]


def test_a_header_is_read_once_for_each_version_of_a_file(folder, monkeypatch):
    read = []
    monkeypatch.setattr(model_files, "read_facts", lambda path, _: read.append(path.name) or facts_of({}))
    files = ModelFiles([], folder)
    files.look()
    assert len(read) == 4
    files.look()
    assert len(read) == 4
    os.utime(folder / "one.gguf", (1, 1))
    (folder / "new.gguf").write_bytes(b"x")
    (folder / "broken.gguf").unlink()
    assert [file.name for file in files.look()] == ["cut", "new", "one", "sub/two-Q8_0"]
    assert sorted(read[4:]) == ["new.gguf", "one.gguf"]


def test_a_description_is_made_of_the_open_file_and_kept(folder):
    opened = []

    def describe(checkpoint):
        opened.append(checkpoint.path.name)
        return len(checkpoint.tensors)

    files = ModelFiles([], folder, describe)
    for _ in range(2):
        found = {file.name: file.facts.description for file in files.look()}
        assert found["one"] > 10
        assert found["broken"] is None
        assert sorted(opened) == ["one.gguf", "two-Q8_0.gguf"]


def test_a_file_or_folder_that_goes_is_no_failure(folder, tmp_path):
    files = ModelFiles([("gone", tmp_path / "gone.gguf")], tmp_path / "no such folder")
    (gone,) = files.look()
    assert gone.facts.error == "cannot read the file: No such file or directory"


@pytest.mark.parametrize(
    ("metadata", "facts"),
    [
        ({}, (None, 0)),
        ({"general.architecture": "x", "x.context_length": "many", "x.block_count": True}, (None, 0)),
        ({"general.architecture": "x", "x.context_length": -5}, (None, 0)),
        (
            {"general.architecture": "x", "x.context_length": 9, "x.block_count": 3, "x.embedding_length": 64,
             "x.attention.head_count": 4, "x.attention.head_count_kv": [2, 1, 2]},
            (9, (2 + 1 + 2) * (16 + 16) * 2),
        ),
        (
            {"general.architecture": "x", "x.block_count": 3, "x.attention.head_count": 4,
             "x.attention.key_length": 8, "x.attention.value_length": 4},
            (None, 3 * 4 * 12 * 2),
        ),
    ],
)  # fmt: skip
def test_metadata_that_says_little_or_nonsense(metadata, facts):
    found = facts_of(metadata)
    assert (found.context_length, found.kv_bytes_per_token) == facts
