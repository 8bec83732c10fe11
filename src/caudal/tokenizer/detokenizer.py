"""Text from token ids, piece by piece, never half a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the tokens of one answer into text as they come.

    All pushes and the flush, joined, are the text that the prompt and the answer have together, without the text
    of the prompt: a character that the prompt began and the answer ends belongs to the answer. Bytes that are no
    UTF-8 become U+FFFD. How the tokens are cut into pushes makes no difference.

    Args:
        pieces: token id -> bytes.
        hidden_ids: tokens that leave no text.
        drop_space: the vocabulary puts a space before every text; the first one of the whole text is left out.
        prompt_ids: the tokens before the answer.
    """

    def __init__(
        self,
        pieces: Mapping[int, bytes],
        *,
        hidden_ids: Collection[int] = frozenset(),
        drop_space: bool = False,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._pieces = pieces
        self._hidden = hidden_ids
        self._decoder = _new_decoder(errors="replace")
        self._drop_space = drop_space and not any(pieces[i] for i in prompt_ids if i not in hidden_ids)
        self._begin_after(prompt_ids)

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the characters that these tokens complete."""
        pieces, hidden = self._pieces, self._hidden
        if hidden:
            data = b"".join([pieces[i] for i in token_ids if i not in hidden])
        else:
            data = b"".join([pieces[i] for i in token_ids])
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that was never completed, or nothing."""
        return self._decoder.decode(b"", final=True)

    def _begin_after(self, prompt_ids: Sequence[int]) -> None:
        """Bring the decoder into the state in which the prompt's last character leaves it."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._hidden:
                tail = self._pieces[token_id] + tail
            if len(tail) >= 3:  # an unfinished character has at most three bytes
                break
        tail = tail[-3:]
        for start in range(len(tail) - 1, -1, -1):
            if tail[start] >= 0xC0:  # the byte that begins a character
                self._decoder.decode(tail[start:])
                return
