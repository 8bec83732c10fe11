"""A tokenizer from the files of a Hugging Face folder: as tokenizer.json says.

Users' texts are kept from control tokens as everywhere. Source: the `tokenizers` library's tokenizer.json.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken

from caudal.errors import CheckpointError
from caudal.tokenizer.chat_template import template_of
from caudal.tokenizer.fim_tokens import fim_tokens_of
from caudal.tokenizer.freed_memory import give_back_freed_memory
from caudal.tokenizer.hf_vocabulary import TOKENIZER, HFVocabulary, read_hf_vocabulary
from caudal.tokenizer.token_bytes import TokenBytes
from caudal.tokenizer.token_types import CONTROL, UNKNOWN
from caudal.tokenizer.tokenizer import Bounds, TextEncoder, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.checkpoint import HFFolder

_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def load_hf_tokenizer(folder: HFFolder, *, chat_template: str | None = None) -> Tokenizer:
    """Build the tokenizer of an open folder.

    Args:
        folder: the model.
        chat_template: takes the place of the folder's.

    Raises:
        CheckpointError: there is no tokenizer, or it cannot be built.
        UnsupportedFormat: it is of a kind that Caudal does not have.
    """
    vocabulary = read_hf_vocabulary(folder)
    if chat_template is not None:
        vocabulary = vocabulary.with_template(chat_template)
    tokenizer = Tokenizer(
        _text_encoder(vocabulary, folder),
        tokens=vocabulary.tokens,
        pieces=TokenBytes(vocabulary.tokens, vocabulary.token_types, byte_level=_is_byte_level(vocabulary)),
        drop_space=_drops_space(vocabulary),
        bounds=Bounds(
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            first_id=vocabulary.bos_id if vocabulary.add_bos else None,
            last_id=vocabulary.eos_id if vocabulary.add_eos else None,
            stop_ids=vocabulary.stop_ids,
        ),
        chat_template=template_of(vocabulary.chat_template, vocabulary.tokens, vocabulary.bos_id, vocabulary.eos_id),
        fim_tokens=fim_tokens_of(vocabulary.tokens),
    )
    # Building takes several times the memory of what is built, and the model's weights come next.
    give_back_freed_memory()
    return tokenizer


def _text_encoder(vocabulary: HFVocabulary, folder: HFFolder) -> TextEncoder:
    """Make two tokenizers that share one model: one knows control tokens, one does not."""
    nothing: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        plain = tokenizers.Tokenizer.from_str(json.dumps({**vocabulary.settings, **nothing}))
    except Exception as error:
        fact = f"the tokenizer cannot be built: {error}"
        raise CheckpointError(fact, path=folder.path / TOKENIZER) from error
    parsing = tokenizers.Tokenizer(plain.model)
    for part in ("normalizer", "pre_tokenizer"):
        if getattr(plain, part) is not None:
            setattr(parsing, part, getattr(plain, part))
    control: list[AddedToken] = []
    visible: list[AddedToken] = []
    for entry in vocabulary.added:
        is_control = vocabulary.token_types[entry["id"]] in (CONTROL, UNKNOWN)
        (control if is_control else visible).append(_added_token(entry, special=is_control))
    parsing.add_special_tokens(control)
    for tokenizer in (plain, parsing):
        tokenizer.add_tokens(visible)
    ids = sorted(vocabulary.special_ids, reverse=True)
    return TextEncoder(plain, parsing, {vocabulary.tokens[i]: i for i in ids if vocabulary.tokens[i]})


def _added_token(entry: Mapping[str, Any], *, special: bool) -> AddedToken:
    flags = {flag: bool(entry[flag]) for flag in _ADDED_FLAGS if flag in entry}
    return AddedToken(entry["content"], special=special, **({"normalized": not special} | flags))


def _is_byte_level(vocabulary: HFVocabulary) -> bool:
    """Whether tokens are spelled in stand-ins for bytes."""
    return any(
        step.get("type") == "ByteLevel" for part in ("pre_tokenizer", "decoder") for step in vocabulary.steps(part)
    )


def _drops_space(vocabulary: HFVocabulary) -> bool:
    """Whether decoding leaves out the first space of a text."""
    for step in vocabulary.steps("decoder"):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start"):
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return step.get("add_prefix_space") is not False
    return False
