"""Typed reads of metadata."""

import re

import pytest

from caudal.checkpoint import MetadataReader
from caudal.errors import CheckpointError

METADATA = {
    "llama.block_count": 3,
    "llama.eps": 1e-5,
    "llama.causal": True,
    "llama.name": "x",
    "llama.per_layer": [4, 5, 6],
    "llama.mixed": [1, 2.0, 3],
    "llama.pattern": [True, False, True],
    "llama.words": ["a", "b"],
    "llama.factors": [0.5, 1.0, 2.0],
    "llama.empty": [],
    "general.name": "whole",
}
READER = MetadataReader(METADATA, "llama", path="m.gguf")


def test_values_of_the_right_type():
    assert READER.int("block_count") == 3
    assert READER.float("eps") == 1e-5
    assert READER.float("block_count") == 3.0
    assert type(READER.float("block_count")) is float
    assert READER.bool("causal") is True
    assert READER.str("name") == "x"
    assert MetadataReader(METADATA).str("general.name") == "whole"


def test_one_number_or_one_a_layer():
    assert READER.ints("block_count", 2) == (3, 3)
    assert READER.ints("per_layer", 3) == (4, 5, 6)
    assert READER.ints("per_layer", None) == (4, 5, 6)
    assert READER.bools("causal", 2) == (True, True)
    assert READER.bools("pattern", 3) == (True, False, True)
    assert READER.floats("factors", 3) == (0.5, 1.0, 2.0)
    assert READER.floats("eps", 2) == (1e-5, 1e-5)
    assert READER.strs("words") == ("a", "b")
    assert READER.ints("empty", None) == ()


def test_defaults_count_only_when_the_key_is_missing():
    assert READER.int("absent", 7) == 7
    assert READER.int("absent", None) is None
    assert READER.float("absent", 0.5) == 0.5
    assert READER.ints("absent", 2, None) is None
    assert READER.int("block_count", 7) == 3
    assert not READER.has("absent")
    assert READER.has("eps")


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda r: r.int("absent"), "metadata key 'llama.absent' is missing"),
        (lambda r: r.ints("absent", 3), "metadata key 'llama.absent' is missing"),
        (lambda r: r.int("eps"), "'llama.eps' is a float: 1e-05; expected a whole number"),
        (lambda r: r.int("causal"), "'llama.causal' is a bool: True; expected a whole number"),
        (lambda r: r.int("per_layer"), "'llama.per_layer' is a list of 3: [4, 5, 6]; expected a whole number"),
        (lambda r: r.int("name", 5), "'llama.name' is a str: 'x'; expected a whole number"),
        (lambda r: r.float("causal"), "expected a number"),
        (lambda r: r.float("name"), "expected a number"),
        (lambda r: r.bool("block_count"), "expected a bool"),
        (lambda r: r.str("block_count"), "expected a string"),
        (lambda r: r.ints("per_layer", 2), "is a list of 3: [4, 5, 6]; expected 2 of int, or one for all"),
        (lambda r: r.ints("mixed", 3), "expected 3 of int"),
        (lambda r: r.ints("pattern", 3), "expected 3 of int"),
        (lambda r: r.ints("causal", 3), "expected 3 of int"),
        (lambda r: r.ints("block_count", None), "expected a list of int"),
        (lambda r: r.bools("per_layer", 3), "expected 3 of bool"),
        (lambda r: r.strs("name"), "expected a list of str"),
        (lambda r: r.ints("empty", 1), "expected 1 of int"),
    ],
)
def test_errors_name_the_file_the_key_and_both_types(read, words):
    with pytest.raises(CheckpointError, match="^m.gguf: .*" + re.escape(words)):
        read(READER)


def test_long_values_are_shortened():
    reader = MetadataReader({"k": list(range(1000)), "s": "x" * 1000})
    for key in ("k", "s"):
        with pytest.raises(CheckpointError) as error:
            reader.float(key)
        assert len(str(error.value)) < 220
