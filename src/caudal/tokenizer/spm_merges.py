"""Merge rules for SentencePiece vocabularies, which store scores and no merges.

Two neighbours merge when their texts joined are a token; the token with the best score goes first. That is
byte-pair encoding with one rule for every way to cut a token into two tokens, ranked by the score of the whole.

Finding the rules of 262,144 tokens takes about a second, so they are kept in the user's cache, keyed by a hash of
the vocabulary. The file holds a SHA-256 of what follows, then pairs of uint32: left and right token id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from array import array
from typing import TYPE_CHECKING

from caudal.config import cache_dir
from caudal.tokenizer.token_types import CONTROL, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from caudal.tokenizer.gguf_vocabulary import GgufVocabulary

_MIN_TOKENS_TO_CACHE = 8192
_DIGEST_BYTES = 32


def spm_merges(vocabulary: GgufVocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merge rules, best first. A control token is never the result of a rule.

    Args:
        vocabulary: tokens, their types and scores.
        ids: token text -> id.
    """
    path = None
    if len(vocabulary.tokens) >= _MIN_TOKENS_TO_CACHE:
        path = cache_dir() / "tokenizers" / f"{_vocabulary_digest(vocabulary)}.merges"
    pairs = None if path is None else _read_pairs(path, len(vocabulary.tokens))
    if pairs is None:
        pairs = find_pairs(vocabulary, ids)
        if path is not None:
            _write_pairs(path, pairs)
    text_of = vocabulary.tokens.__getitem__
    return list(zip(map(text_of, pairs[0::2]), map(text_of, pairs[1::2]), strict=True))


def find_pairs(vocabulary: GgufVocabulary, ids: Mapping[str, int]) -> array[int]:
    """Return left id, right id, left id, right id, ... of every rule, best rule first."""
    scores, types = vocabulary.scores, vocabulary.token_types
    find = ids.get
    pairs = array("I")
    # Better scores first, then lower ids; the rules of one token by the ids of their parts.
    for text, _ in sorted(ids.items(), key=lambda item: (-scores[item[1]], item[1])):
        if len(text) < 2 or types[ids[text]] in (CONTROL, UNKNOWN):
            continue
        cuts = [
            (left, right)
            for left, right in (
                (find(text[:k], -1), find(text[k:], -1)) for k in range(1, len(text)) if text[:k] in ids
            )
            if right >= 0
        ]
        if len(cuts) > 1:
            cuts.sort()
        for cut in cuts:
            pairs.extend(cut)
    return pairs


def _vocabulary_digest(vocabulary: GgufVocabulary) -> str:
    """Return a hash of everything that the rules depend on, the layout of the file included."""
    digest = hashlib.sha256(f"caudal spm merges 1 {sys.byteorder}".encode())
    for token in ("\0".join(vocabulary.tokens)).encode("utf-8", "surrogatepass"), bytes(vocabulary.token_types):
        digest.update(len(token).to_bytes(8, "little"))
        digest.update(token)
    digest.update(array("d", vocabulary.scores).tobytes())
    return digest.hexdigest()


def _read_pairs(path: Path, num_tokens: int) -> array[int] | None:
    """Return the pairs in a cache file, or None if there is no sound one."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES] or len(body) % 8:
        return None
    pairs = array("I", body)
    return pairs if not pairs or max(pairs) < num_tokens else None


def _write_pairs(path: Path, pairs: array[int]) -> None:
    """Write the cache file in one move; a folder that cannot be written only costs time at the next start."""
    body = pairs.tobytes()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            os.replace(temporary, path)  # noqa: PTH105 (the name is a string from mkstemp)
        except OSError:
            os.unlink(temporary)  # noqa: PTH108
            raise
