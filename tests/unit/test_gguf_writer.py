"""Writing GGUF: what is written is read back."""

import numpy as np
import pytest

from caudal.checkpoint.gguf_file import open_gguf
from caudal.checkpoint.gguf_writer import write_gguf
from caudal.quant import FORMATS

VALUES = {
    "int": 5,
    "big": 1 << 40,
    "negative": -3,
    "float": 0.25,
    "yes": True,
    "text": "ñ\n",
    "ints": [1, 2],
    "signed": [-1, 2],
    "floats": [0.5, 1],
    "bools": [True, False],
    "texts": ["a", ""],
    "empty": [],
    "u16": np.uint16(9),
    "i64": np.int64(-9),
    "f64": np.float64(0.1),
    "bool8": np.bool_(1),
    "i32s": np.array([3, -4], np.int32),
    "u8s": np.arange(3, dtype=np.uint8),
    "f64s": np.array([0.1]),
    "i64s": np.array([1 << 50]),
}


@pytest.mark.parametrize("alignment", [32, 1, 256])
def test_round_trip(tmp_path, alignment):
    rng = np.random.default_rng(0)
    tensors = {}
    for name, block in FORMATS.items():
        values = rng.standard_normal(512).astype(np.float32)
        tensors[name] = (name, (2, 256), block.quantize(values))
    path = tmp_path / "m.gguf"
    write_gguf(path, VALUES, tensors, alignment)
    with open_gguf(path) as model:
        found = dict(model.metadata)
        assert found.pop("general.alignment", 32) == alignment
        plain = {
            key: value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
            for key, value in VALUES.items()
        }
        assert found == plain
        assert list(model.tensors) == list(tensors)
        for name, (format_name, shape, data) in tensors.items():
            assert (model.tensors[name].format, model.tensors[name].shape) == (format_name, shape)
            assert np.array_equal(model.tensors[name].data, data)


def test_bytes_may_come_from_a_function(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return np.ones(3, np.float32).view(np.uint8)

    write_gguf(tmp_path / "m.gguf", {}, {"t": ("F32", (3,), make)})
    assert open_gguf(tmp_path / "m.gguf").tensors["t"].dequantize().tolist() == [1, 1, 1]
    assert calls == [1]


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        ({"k": [1, "a"]}, {}, "k: GGUF cannot hold"),
        ({"k": None}, {}, "k: GGUF cannot hold"),
        ({"k": 1 << 64}, {}, "k: GGUF cannot hold"),
        ({"k": -(1 << 63) - 1}, {}, "k: GGUF cannot hold"),
        ({"k": [[1]]}, {}, "k: GGUF cannot hold"),
        ({"k": np.zeros((2, 2))}, {}, "k: GGUF cannot hold"),
        ({"k": np.zeros(2, np.float16)}, {}, "k: GGUF cannot hold"),
        ({}, {"t": ("F32", (3,), np.zeros(11, np.uint8))}, "t: expected 12 bytes"),
        ({}, {"t": ("Q4_0", (48,), np.zeros(27, np.uint8))}, "t: shape .* blocks hold 32 values"),
        ({}, {"t": ("F32", (), np.zeros(4, np.uint8))}, "t: shape"),
    ],
)
def test_what_gguf_cannot_hold(tmp_path, metadata, tensors, words):
    with pytest.raises(ValueError, match=words):
        write_gguf(tmp_path / "m.gguf", metadata, tensors)
