"""The tokens with which a model is asked to fill in the middle of a text.

Sources: the GGUF specification, "Tokenizer" (tokenizer.ggml.fim_*_token_id); the model cards of Qwen2.5-Coder,
StarCoder2, DeepSeek-Coder, CodeLlama, CodeGemma and Granite Code for the texts of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FULL_BAR, _LOW_BAR = "\uff5c", "\u2581"

# part -> keys of the file after "tokenizer.ggml.", and the texts of tokens of that part.
_PARTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prefix": (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            "<|fim_prefix|>",
            "<fim_prefix>",
            "<fim-prefix>",
            f"<{_FULL_BAR}fim{_LOW_BAR}begin{_FULL_BAR}>",
            "<|code_prefix|>",
            f"{_LOW_BAR}<PRE>",
            "<PRE>",
        ),
    ),
    "suffix": (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            "<|fim_suffix|>",
            "<fim_suffix>",
            "<fim-suffix>",
            f"<{_FULL_BAR}fim{_LOW_BAR}hole{_FULL_BAR}>",
            "<|code_suffix|>",
            f"{_LOW_BAR}<SUF>",
            "<SUF>",
        ),
    ),
    "middle": (
        ("fim_mid_token_id", "middle_token_id"),
        (
            "<|fim_middle|>",
            "<fim_middle>",
            "<fim-middle>",
            f"<{_FULL_BAR}fim{_LOW_BAR}end{_FULL_BAR}>",
            "<|code_middle|>",
            f"{_LOW_BAR}<MID>",
            "<MID>",
        ),
    ),
    "repository": (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim_repo>", "<fim-repo>", "<repo_name>", "<reponame>", "<REPO>"),
    ),
    "separator": (("fim_sep_token_id",), ("<|file_sep|>", "<file_sep>")),
}
_TEXTS = frozenset(text for _, texts in _PARTS.values() for text in texts)


@dataclass(frozen=True, kw_only=True)
class FimTokens:
    """Token ids.

    Attributes:
        prefix, suffix, middle: before the text before the gap, before the text after it, and before the answer.
        repository: before a repository's name; None if the model has none.
        separator: before a file's name; None if the model has none.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    separator: int | None = None


def find_fim_tokens(metadata: Mapping[str, object]) -> FimTokens | None:
    """Return the tokens that a GGUF file's metadata names or its vocabulary holds; None unless all three are there.

    A key that makes no sense counts as absent: such a file still answers chats.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list | tuple):
        return None
    try:
        return fim_tokens_of(tokens, metadata)
    except TypeError:  # arrays in an array: no vocabulary
        return None


def fim_tokens_of(tokens: Sequence[str], metadata: Mapping[str, object] = MappingProxyType({})) -> FimTokens | None:
    """Return the tokens that a vocabulary holds; what a GGUF file's `metadata` names goes first."""
    ids = {text: tokens.index(text) for text in _TEXTS.intersection(tokens)}
    found = {part: _token_id(metadata, ids, len(tokens), *where) for part, where in _PARTS.items()}
    prefix, suffix, middle = found["prefix"], found["suffix"], found["middle"]
    if prefix is None or suffix is None or middle is None:
        return None
    return FimTokens(
        prefix=prefix,
        suffix=suffix,
        middle=middle,
        repository=found["repository"],
        separator=found["separator"],
    )


def _token_id(
    metadata: Mapping[str, object],
    ids: Mapping[str, int],
    num_tokens: int,
    keys: tuple[str, ...],
    texts: tuple[str, ...],
) -> int | None:
    for key in keys:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if type(value) is int and 0 <= value < num_tokens:
            return value
    return next((ids[text] for text in texts if text in ids), None)
