"""Follows one answer and says which tokens may come next."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from caudal.constrain.limits import parser_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_GUESS = 64


class GrammarError(Exception):
    """A grammar cannot be used, or gave up; the message says why, for a user."""


class TokenTable:
    """A vocabulary as llguidance reads it.

    Control tokens are none of the text that a grammar describes: only a grammar that names one gets it.

    Args:
        tokens: the bytes of every token id; b"" for ids that stand for nothing.
        special_ids: control tokens.
        eos_token_ids: tokens that end an answer; at least one.
        vocab_size: of the model, which may have more ids than the tokenizer.
    """

    def __init__(
        self, tokens: Sequence[bytes], special_ids: Sequence[int], eos_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        if not eos_token_ids:
            message = "this model has no token that ends an answer, so an answer's form cannot be prescribed"
            raise GrammarError(message)
        padded = [*tokens[:vocab_size], *[b""] * (vocab_size - len(tokens))]
        special = [token_id for token_id in special_ids if 0 <= token_id < vocab_size]
        source = _TokenSource(padded, special, eos_token_ids[0])
        self.vocab_size = vocab_size
        self.native = LLTokenizer(TokenizerWrapper(source), n_vocab=vocab_size, eos_token=list(eos_token_ids))

    @property
    def num_mask_bytes(self) -> int:
        """Bytes of a mask: whole words of 32 bits."""
        return (self.vocab_size + 31) // 32 * 4


class _TokenSource:
    """The attributes that llguidance asks a tokenizer for."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id
        self._ids = {token: token_id for token_id, token in enumerate(tokens) if 0 < len(token) <= _LONGEST_GUESS}
        for token_id in special_token_ids:
            if self._ids.get(tokens[token_id]) == token_id:
                del self._ids[tokens[token_id]]

    def __call__(self, data: bytes | str) -> list[int]:
        """Cut bytes into the longest tokens from the left: how forced text is guessed, which sampling then checks."""
        rest = data.encode() if isinstance(data, str) else data
        ids: list[int] = []
        while rest:
            for length in range(min(_LONGEST_GUESS, len(rest)), 0, -1):
                token_id = self._ids.get(rest[:length])
                if token_id is not None:
                    ids.append(token_id)
                    rest = rest[length:]
                    break
            else:
                break
        return ids


class Matcher:
    """One grammar and how far one answer has come in it. Used by one thread at a time.

    Args:
        table: the model's vocabulary.
        grammar: as `output_rule.grammar_of` returns it.

    Raises:
        GrammarError: the grammar cannot be used.
    """

    def __init__(self, table: TokenTable, grammar: str) -> None:
        self._table = table
        self._native = LLMatcher(table.native, grammar, log_level=0, limits=parser_limits())
        self._check()
        self.num_consumed = 0

    def copy(self) -> Matcher:
        """Return another one at the same place; what one has worked out serves both."""
        other = object.__new__(Matcher)
        other._table = self._table
        other._native = self._native.deep_copy()
        other.num_consumed = self.num_consumed
        return other

    def consume(self, token_ids: list[int]) -> None:
        """Follow the answer by these tokens. Raises GrammarError if the grammar has no place for them."""
        if token_ids and not self._native.consume_tokens(token_ids):
            self._check()
            message = "the answer has left its grammar"
            raise GrammarError(message)
        self.num_consumed += len(token_ids)

    def accepted(self, token_ids: list[int]) -> int:
        """Return how many of these tokens could follow."""
        return int(self._native.validate_tokens(token_ids)) if token_ids else 0

    def forced(self) -> list[int]:
        """Return tokens that spell the only text that can follow, if there is only one."""
        return list(self._native.compute_ff_tokens())

    def fill_masks(self, address: int, num_bytes: int, draft: list[int]) -> int:
        """Write masks: of the next token, and of the one behind each token of a draft, as if that had come.

        Args:
            address: of 1 + len(draft) masks of num_bytes each, in a row.
            num_bytes: of one mask, TokenTable.num_mask_bytes.
            draft: guessed tokens.

        Returns:
            How many masks were written: none behind a guess that the grammar refuses.
        """
        num_masks = 1
        self._native.unsafe_compute_mask_ptr(address, num_bytes)
        for token_id in draft[: self.accepted(draft)]:
            self._native.consume_token(token_id)
            self._native.unsafe_compute_mask_ptr(address + num_masks * num_bytes, num_bytes)
            num_masks += 1
        if num_masks > 1:
            self._check()
            self._native.rollback(num_masks - 1)
        self._check()
        return num_masks

    def first_mask(self, mask: bytearray) -> None:
        """Write the mask of an answer's first token, and see whether one can follow. Raises GrammarError if not."""
        place = (ctypes.c_char * len(mask)).from_buffer(mask)
        self.fill_masks(ctypes.addressof(place), len(mask), [])

    def _check(self) -> None:
        if self._native.is_error():
            raise GrammarError(reason_of(self._native.get_error()))


def reason_of(error: str) -> str:
    """Return the part of llguidance's message that a user can do something with, in one short line."""
    line = " ".join(error.replace("<non-verbose/>", "").split())
    if line.startswith("NoExtensionBias"):
        return "nothing can satisfy it"
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[:_MAX_REASON_CHARS]}…"


_MAX_REASON_CHARS = 300
