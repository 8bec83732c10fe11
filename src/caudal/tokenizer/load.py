"""The tokenizer of an open model, in either container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.checkpoint import HFFolder
from caudal.tokenizer.from_gguf import load_gguf_tokenizer
from caudal.tokenizer.from_hf import load_hf_tokenizer

if TYPE_CHECKING:
    from caudal.checkpoint import Checkpoint
    from caudal.tokenizer.tokenizer import Tokenizer


def load_tokenizer(checkpoint: Checkpoint, *, chat_template: str | None = None) -> Tokenizer:
    """Build the tokenizer; `chat_template` takes the place of the model's.

    Raises:
        CheckpointError: there is none that can be used.
        UnsupportedFormat: it is of a kind that Caudal does not have.
    """
    if isinstance(checkpoint, HFFolder):
        return load_hf_tokenizer(checkpoint, chat_template=chat_template)
    return load_gguf_tokenizer(checkpoint.metadata, path=checkpoint.path, chat_template=chat_template)
