"""Embedding and reranking models that read any text, made of the parity tests' weights and an alphabet of letters.

Their answers mean nothing; their shapes, lengths and counts are those of a real model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from caudal.checkpoint import open_checkpoint
from caudal.checkpoint.gguf_writer import write_gguf

DATA = Path(__file__).resolve().parents[1] / "parity" / "data"
CONTEXT = 512
NORMAL, CONTROL = 1, 3


def alphabet(size):
    """Return words for WordPiece: control tokens, then letters that begin a word and letters that go on with one."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"▁{letter}" for letter in letters), *letters, "▁.", "▁,", "▁?"]
    return [*words[:size], *(f"▁[unused{i}]" for i in range(size - len(words)))]


def write_encoder(source, target):
    """Write a copy of a model without a tokenizer that has one, and a longer context."""
    with open_checkpoint(source) as checkpoint:
        stored = {t.name: (t.format, t.shape, np.array(t.data)) for t in checkpoint.tensors.values()}
        metadata = {**checkpoint.metadata, "bert.context_length": CONTEXT}
    size, width = stored["token_embd.weight"][1]
    positions = np.random.default_rng(0).normal(0, 0.02, (CONTEXT, width)).astype(np.float32)
    stored["position_embd.weight"] = ("F32", positions.shape, positions.reshape(-1).view(np.uint8))
    tokens = alphabet(size)
    keys = {
        "model": "bert",
        "tokens": tokens,
        "token_type": np.array([CONTROL if token[0] == "[" else NORMAL for token in tokens], dtype=np.int32),
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "bos_token_id": 2,
        "seperator_token_id": 3,  # sic
        "padding_token_id": 0,
    }
    write_gguf(target, metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, stored)


def write_encoders(folder):
    """Write `embedding.gguf` and `reranker.gguf`."""
    write_encoder(DATA / "bert.gguf", folder / "embedding.gguf")
    write_encoder(DATA / "bert-reranker.gguf", folder / "reranker.gguf")


if __name__ == "__main__":
    write_encoders(Path(sys.argv[1]))
