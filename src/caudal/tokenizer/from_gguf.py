"""A tokenizer from the metadata of a GGUF file.

Kinds: "gpt2" (byte-level BPE), "gemma4" (BPE on UTF-8), "llama" (SentencePiece BPE), "bert" (WordPiece). No
normal form of Unicode is applied where the file asks for none, so that text survives a round trip.

Source: the GGUF specification, "Tokenizer"; llama.cpp's vocabulary test vectors fix the details.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from caudal.errors import CheckpointError, UnsupportedFormat
from caudal.tokenizer.chat_template import template_of
from caudal.tokenizer.fim_tokens import FimTokens, find_fim_tokens
from caudal.tokenizer.freed_memory import give_back_freed_memory
from caudal.tokenizer.gguf_vocabulary import GgufVocabulary, read_vocabulary
from caudal.tokenizer.pair_text import PairText
from caudal.tokenizer.pre_tokenizers import PreTokenizer, find_pre_tokenizer
from caudal.tokenizer.spm_merges import spm_merges
from caudal.tokenizer.token_bytes import TokenBytes
from caudal.tokenizer.token_types import CONTROL, UNKNOWN, USER_DEFINED
from caudal.tokenizer.tokenizer import Bounds, TextEncoder, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPACE = "\u2581"  # SentencePiece's stand-in for a space
_MAX_WORD_CHARS = 100  # of a WordPiece word, as published with BERT; longer ones are unknown. The search is quadratic


@dataclass(frozen=True)
class _Parts:
    """What differs between the kinds.

    Attributes:
        byte_level: how tokens spell bytes, see TokenBytes.
        drop_space: decoding leaves out the first space of a text.
        add_bos: the kind's own default where the file does not say.
    """

    model: models.Model
    normalizer: normalizers.Normalizer | None
    pre_tokenizer: pre_tokenizers.PreTokenizer | None
    byte_level: bool
    drop_space: bool
    add_bos: bool


def load_gguf_tokenizer(
    metadata: Mapping[str, object], *, path: object = None, chat_template: str | None = None
) -> Tokenizer:
    """Build the tokenizer that `metadata` describes.

    Args:
        metadata: the key-value pairs of a GGUF file.
        path: the file's name, for messages.
        chat_template: takes the place of the file's.

    Raises UnsupportedFormat for a kind or pre-tokeniser that Caudal does not know, CheckpointError for keys that
    are missing or make no sense.
    """
    vocabulary = read_vocabulary(metadata, path=path)
    if chat_template is not None:
        vocabulary = replace(vocabulary, chat_template=chat_template)
    tokenizer = _build(vocabulary, path, find_fim_tokens(metadata))
    # Building takes several times the memory of what is built, and the model's weights come next.
    give_back_freed_memory()
    return tokenizer


def _build(vocabulary: GgufVocabulary, path: object, fim_tokens: FimTokens | None) -> Tokenizer:
    ids: dict[str, int] = {}
    for token_id, text in enumerate(vocabulary.tokens):
        ids.setdefault(text, token_id)
    ids.pop("", None)
    if vocabulary.model in ("gpt2", "gemma4"):
        parts = _bpe(vocabulary, ids, path)
    elif vocabulary.model == "llama":
        parts = _sentencepiece(vocabulary, ids)
    elif vocabulary.model == "bert":
        parts = _word_piece(vocabulary, ids)
    else:
        fact = (
            f"tokenizer.ggml.model is {vocabulary.model!r}; Caudal knows gpt2, gemma4, llama and bert. "
            "Use a newer Caudal, or report this name with the model's origin"
        )
        raise UnsupportedFormat(fact, path=path)
    add_bos = parts.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
    last_id = vocabulary.separator_id if vocabulary.model == "bert" else vocabulary.eos_id
    return Tokenizer(
        _text_encoder(vocabulary, parts),
        tokens=vocabulary.tokens,
        pieces=TokenBytes(vocabulary.tokens, vocabulary.token_types, byte_level=parts.byte_level),
        drop_space=parts.drop_space,
        bounds=Bounds(
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            first_id=vocabulary.bos_id if add_bos else None,
            last_id=last_id if vocabulary.add_eos else None,
            stop_ids=vocabulary.stop_ids,
        ),
        chat_template=template_of(vocabulary.chat_template, vocabulary.tokens, vocabulary.bos_id, vocabulary.eos_id),
        pair_text=PairText(vocabulary.rerank_template) if vocabulary.rerank_template else None,
        fim_tokens=fim_tokens,
    )


def _bpe(vocabulary: GgufVocabulary, ids: dict[str, int], path: object) -> _Parts:
    """Byte-level BPE, or BPE on UTF-8 with single bytes as the last resort."""
    pre = find_pre_tokenizer("gemma4" if vocabulary.model == "gemma4" else vocabulary.pre, path=path)
    model = models.BPE(
        vocab=ids,
        merges=_listed_merges(vocabulary, ids, path),
        ignore_merges=pre.ignore_merges,
        byte_fallback=not pre.byte_level,
        fuse_unk=False,
    )
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(r), "isolated") for r in pre.regexes]
    if pre.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return _Parts(
        model=model,
        normalizer=None if pre.byte_level else normalizers.Replace(" ", _SPACE),
        pre_tokenizer=pre_tokenizers.Sequence(steps),
        byte_level=pre.byte_level,
        drop_space=False,
        add_bos=_adds_bos(vocabulary, pre),
    )


def _adds_bos(vocabulary: GgufVocabulary, pre: PreTokenizer) -> bool:
    return pre.add_bos or vocabulary.model == "gemma4"


def _listed_merges(vocabulary: GgufVocabulary, ids: Mapping[str, int], path: object) -> list[tuple[str, str]]:
    """Split the file's "left right" rules, without those about unknown tokens and those that make control tokens."""
    types = vocabulary.token_types
    merges = []
    for rule in vocabulary.merges:
        cut = rule.find(" ", 1)
        if cut < 0:
            fact = f"tokenizer.ggml.merges holds {rule[:40]!r}; expected two parts with a space between"
            raise CheckpointError(fact, path=path)
        left, right = rule[:cut], rule[cut + 1 :]
        result = ids.get(left + right)
        if result is not None and left in ids and right in ids and types[result] not in (CONTROL, UNKNOWN):
            merges.append((left, right))
    return merges


def _sentencepiece(vocabulary: GgufVocabulary, ids: dict[str, int]) -> _Parts:
    """SentencePiece's BPE: the whole text is one word, spaces are U+2581, unknown characters fall back to bytes."""
    unknown = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    model = models.BPE(
        vocab=ids,
        merges=spm_merges(vocabulary, ids),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=unknown,
    )
    prefix = [normalizers.Prepend(_SPACE)] if vocabulary.add_space_prefix else []
    return _Parts(
        model=model,
        normalizer=normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)]),
        pre_tokenizer=None,
        byte_level=False,
        drop_space=vocabulary.add_space_prefix,
        add_bos=True,
    )


def _word_piece(vocabulary: GgufVocabulary, ids: Mapping[str, int]) -> _Parts:
    """BERT's WordPiece. The file marks the beginning of a word with U+2581, the model marks the rest with ##."""
    words: dict[str, int] = {}
    for text, token_id in ids.items():
        is_special = vocabulary.token_types[token_id] in (CONTROL, UNKNOWN) or (text[0] == "[" and text[-1] == "]")
        if is_special:
            words.setdefault(text, token_id)
        else:
            words.setdefault(text[1:] if text[0] == _SPACE else "##" + text, token_id)
    unknown = "[UNK]" if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    return _Parts(
        model=models.WordPiece(words, unk_token=unknown, max_input_chars_per_word=_MAX_WORD_CHARS),
        normalizer=normalizers.BertNormalizer(lowercase=vocabulary.lowercase),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        byte_level=False,
        drop_space=True,
        add_bos=True,
    )


def _text_encoder(vocabulary: GgufVocabulary, parts: _Parts) -> TextEncoder:
    """Make two tokenizers that share one model: one knows control tokens, one does not."""
    plain, parsing = tokenizers.Tokenizer(parts.model), tokenizers.Tokenizer(parts.model)
    control, visible = [], []
    for text, kind in zip(vocabulary.tokens, vocabulary.token_types, strict=True):
        if text and kind in (CONTROL, UNKNOWN):
            control.append(AddedToken(text, special=True, normalized=False))
        elif text and kind == USER_DEFINED:
            visible.append(AddedToken(text, special=False, normalized=False))
    for tokenizer in (plain, parsing):
        if parts.normalizer is not None:
            tokenizer.normalizer = parts.normalizer
        if parts.pre_tokenizer is not None:
            tokenizer.pre_tokenizer = parts.pre_tokenizer
        if tokenizer is parsing:
            tokenizer.add_special_tokens(control)
        tokenizer.add_tokens(visible)
    control_ids = {
        vocabulary.tokens[i]: i for i in sorted(vocabulary.special_ids, reverse=True) if vocabulary.tokens[i]
    }
    return TextEncoder(plain, parsing, control_ids)
