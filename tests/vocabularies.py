"""Tokenizer metadata for tests: tiny ones made here, published ones from ../shared, and real models'."""

import os
from functools import lru_cache
from pathlib import Path

import pytest

from caudal.checkpoint.gguf_file import open_gguf
from caudal.tokenizer.from_gguf import load_gguf_tokenizer
from caudal.tokenizer.token_bytes import byte_of_character

SHARED = Path(__file__).parents[1].parent / "shared"
VOCAB_FILES = sorted((SHARED / "data" / "vocab").glob("*.gguf"))
TEMPLATE_FILES = sorted((SHARED / "data" / "templates").glob("*.jinja"))
MODELS = Path(os.environ.get("CAUDAL_TEST_MODELS", Path.home() / ".cache" / "caudal-test-models"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def files_or_skip(files, what):
    """Parameters for a test over files: one that skips with a reason when there are none."""
    if files:
        return [pytest.param(path, id=path.stem) for path in files]
    return [pytest.param(None, marks=pytest.mark.skip(reason=f"no {what} in ../shared: runs beside it, as in CI"))]


def metadata_of(path):
    with open_gguf(path) as file:
        return {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}


@lru_cache(maxsize=16)
def tokenizer_of(path):
    return load_gguf_tokenizer(metadata_of(path), path=path)


def real_model(name):
    path = MODELS / name
    if not path.exists():
        pytest.skip(f"{name} is not in $CAUDAL_TEST_MODELS: runs where `make models` has fetched it")
    return path


def byte_level(pre="gpt-2", control=("<|im_start|>", "<|im_end|>"), **more):
    """A byte-level vocabulary: 256 bytes, a few merges, one visible added token, control tokens."""
    letters = list(byte_of_character())
    tokens = [*letters, "he", "ll", "llo", "hello", "Ġw", "<tool>", *control]
    types = [NORMAL] * (len(letters) + 5) + [USER_DEFINED] + [CONTROL] * len(control)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e", "l l", "ll o", "he llo", "Ġ w"],
        **{f"tokenizer.{key.replace('__', '.')}": value for key, value in more.items()},
    }


def sentencepiece(**more):
    """A SentencePiece vocabulary: control, bytes, letters and a few words with scores."""
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    words = [
        "\u2581",
        "h",
        "e",
        "l",
        "o",
        "w",
        "<",
        "s",
        ">",
        "/",
        "<s",
        "he",
        "ll",
        "llo",
        "hello",
        "\u2581hello",
        "\u2581w",
    ]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *words]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
        **{f"tokenizer.{key.replace('__', '.')}": value for key, value in more.items()},
    }
