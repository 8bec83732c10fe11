"""What the server asks of a tokenizer. `caudal.tokenizer` provides it; tests bring a tiny one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from caudal.tokenizer.fim_tokens import FimTokens


class StreamDetokenizer(Protocol):
    """Turns token ids into text as they come, never half a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete."""

    def flush(self) -> str:
        """Return what was held back, at the end."""


class ServedTokenizer(Protocol):
    """Text to token ids and back, and the model's chat template."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""

    @property
    def chat_template_source(self) -> str:
        """The model's chat template, which also shows how it writes calls of tools; "" if it has none."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, None if the model has none."""

    @property
    def bos_token(self) -> str:
        """Its text, "" if the model has none."""

    @property
    def eos_token(self) -> str:
        """Text of the token that the file calls its end, "" if it names none."""

    @property
    def fim_tokens(self) -> FimTokens | None:
        """The tokens for filling in the middle of a text; None if the model has none."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Control tokens, text to id: what no text consists of."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text."""

    def encode_pair(self, query: str, document: str) -> list[int]:
        """Return the token ids of a query and a document as one text of a reranker; raises TemplateError."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a conversation; raises TemplateError if the template refuses it."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation's prompt; raises TemplateError if the template refuses it."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""

    def detokenizer(
        self, prompt_token_ids: Sequence[int], /, *, skip_special_tokens: bool = True, shown: Sequence[str] = ()
    ) -> StreamDetokenizer:
        """Return a detokenizer for what follows a prompt. Control tokens with a text of `shown` are not skipped."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for."""
