"""What clients may call models: whatever is accepted is listed under that name, in the folder, and found by it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.errors import LibraryError
from caudal.hub.library_names import MAX_NAME_CHARS, MAX_PART_BYTES, checked_name, copy_name, pulled_name
from caudal.hub.linked_folder import LinkedFolder
from caudal.hub.model_files import ModelFiles
from caudal.server.model_catalog import find_model
from caudal.server.settings import ServedModel

LETTERS = st.sampled_from([*"aZ0._-:~ *?[]{}@#%&$'\"\\/\n\0é漢🙂", "\u202e", "\ud800"])
PIECES = st.sampled_from(
    [
        "..",
        ".",
        "/",
        "//",
        "a",
        "org/m",
        ".gguf",
        ":latest",
        ":LATEST",
        "mmproj",
        "-00001-of-00002",
        "hf.co/",
        "e\u0301",
    ]
)
NAMES = st.lists(LETTERS | PIECES | st.text(max_size=4), max_size=6).map("".join)
HUB_NAMES = st.builds(
    "{}{}/{}{}".format,
    st.sampled_from(["", "hf.co/", "https://hf.co/", "HuggingFace.co/", "hf://", "www.hf.co/"]),
    st.text("aB._-", min_size=1, max_size=5),
    st.text("aB._-", min_size=1, max_size=5),
    st.sampled_from(["", ":latest", ":Q4_K_M", "/x.gguf", "/sub/x.GGUF", "/x-00001-of-00002.gguf", "/../../../x.gguf"]),
)


def refused(function, name):
    with pytest.raises(LibraryError) as caught:
        function(name)
    assert caught.value.reason == "name"
    return str(caught.value)


@pytest.mark.parametrize("function", [checked_name, copy_name, pulled_name])
@given(name=NAMES | HUB_NAMES)
@settings(max_examples=150, deadline=None)
def test_what_is_accepted_is_listed_under_that_name_and_nothing_leaves_the_folder(function, name):
    try:
        listed = function(name)
    except LibraryError:
        refused(function, name)
        return
    with tempfile.TemporaryDirectory() as place:
        models, file = Path(place, "models"), Path(place, "weights")
        models.mkdir()
        file.write_bytes(b"GGUF")
        LinkedFolder(models).add(listed, [file])
        assert {path.name for path in Path(place).iterdir()} == {"models", "weights"}
        (found,) = ModelFiles([], models).look()
        assert found.name == listed
        assert found.path.resolve() == file.resolve()
        served = [ServedModel(name="other"), ServedModel(name=found.name)]
        if function is copy_name:
            assert find_model(served, name).name == listed
        LinkedFolder(models).remove([found.path])
        assert not any(models.iterdir())
        assert file.read_bytes() == b"GGUF"


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("org/m", "org/m"),
        ("org/m:latest", "org/m"),
        ("hf.co/org/m:Q8_0", "hf.co/org/m:Q8_0"),
        ("https://huggingface.co/org/m", "org/m"),
        ("org/m/sub/x.gguf", "org/m/sub/x.gguf"),
        ("https://huggingface.co/org/m/blob/main/x.gguf?download=true", "org/m/x.gguf"),
    ],
)
def test_what_a_pulled_model_is_called(name, listed):
    assert pulled_name(name) == listed


def test_what_a_copy_is_called():
    assert copy_name("mine:latest") == "mine"
    assert copy_name("mine:Q8") == "mine:Q8"
    assert copy_name("más rápido") == "más rápido"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        (":latest", "is empty"),
        (".", "begins with a dot"),
        ("..", "begins with a dot"),
        (".hidden", "begins with a dot"),
        ("a/b", "holds a path separator"),
        ("/etc/x", "holds a path separator"),
        ("../x", "holds a path separator"),
        ("a\\b", "holds a path separator"),
        ("a\0b", "cannot be shown"),
        ("a\nb", "cannot be shown"),
        ("a\u202eb", "cannot be shown"),
        ("a\ud800b", "cannot be shown"),
        (" a", "begins or ends with a space"),
        ("x-00001-of-00002", "as the name of a shard does"),
        ("MMPROJ-x", "begins with mmproj"),
        ("é" * (MAX_PART_BYTES // 2 + 1), f"longer than {MAX_PART_BYTES} bytes"),
    ],
)
def test_what_no_copy_can_be_called(name, why):
    assert why in refused(copy_name, name)


@pytest.mark.parametrize(
    "name",
    ["m", "", "../m", "org/..", "../../m", "/etc/passwd", "org/m/../../../x.gguf", "org/m/.hidden/x.gguf", "org/m/x",
     "http://169.254.169.254/latest/meta-data", "https://evil.example/org/m", "file:///etc/x.gguf", "org/m:../x",
     "org/mmproj-x", "org/m/sub//x.gguf", "org/x-00001-of-00002"],
)  # fmt: skip
def test_what_cannot_be_pulled(name):
    refused(pulled_name, name)


def test_refusals_quote_at_most_a_part_of_what_was_sent():
    for function in (copy_name, pulled_name, checked_name):
        assert len(refused(function, "a/" * MAX_NAME_CHARS)) < 300
        assert len(refused(function, "a" * 100_000)) < 300
    assert f"longer than {MAX_NAME_CHARS} characters" in refused(checked_name, "/".join(["a" * 100] * 6))
