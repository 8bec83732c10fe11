"""Text to token ids and back, for one model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, TemplateError
from caudal.tokenizer.chat_messages import normalise
from caudal.tokenizer.control_text import ControlText
from caudal.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tokenizers

    from caudal.tokenizer.chat_template import ChatTemplate
    from caudal.tokenizer.fim_tokens import FimTokens
    from caudal.tokenizer.pair_text import PairText

_NO_TEMPLATE = (
    "this model has no chat template, it is a base model: use /v1/completions with a plain prompt, or an "
    "instruction-tuned version of the model"
)
_TOO_DEEP = "the messages, or what comes with them, are nested too deeply for the chat template"


_LONG_TEXT_CHARS = 1 << 16


@dataclass(frozen=True)
class Bounds:
    """The tokens at the ends of texts.

    Attributes:
        first_id: put before a prompt.
        last_id: put after a prompt (embedding models).
        stop_ids: each ends an answer.
    """

    bos_id: int | None
    eos_id: int | None
    first_id: int | None
    last_id: int | None
    stop_ids: tuple[int, ...]


class TextEncoder:
    """Text to ids, with or without an eye for control tokens.

    Args:
        plain: knows visible added tokens only.
        parsing: knows control tokens as well.
        control_ids: text of every control token -> id.
    """

    def __init__(
        self, plain: tokenizers.Tokenizer, parsing: tokenizers.Tokenizer, control_ids: Mapping[str, int]
    ) -> None:
        self._plain = plain
        self._parsing = parsing
        self.control_ids = control_ids
        self.control_text = ControlText(control_ids)
        self.special_ids = frozenset(control_ids.values())

    def encode_parsing(self, text: str) -> list[int]:
        """Encode; text of a control token becomes that token."""
        return _encode(self._parsing, _valid_text(text))

    def encode_plain(self, text: str) -> list[int]:
        """Encode; no control token comes out, whatever the text says."""
        text = _valid_text(text)
        ids = _encode(self._plain, text)
        if self.special_ids.isdisjoint(ids):
            return ids
        # A vocabulary that takes whole words as tokens took a control token's text as a word: cut each of them.
        cuts = [0, *(match.start() + 1 for match in self.control_text.pattern.finditer(text)), len(text)]
        return [i for begin, end in pairwise(cuts) for i in _encode(self._plain, text[begin:end])]

    def encode_with_hidden(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        """Encode like encode_parsing a text in which single characters stand in for those of users' control texts.

        Args:
            text: with stand-ins.
            hidden: stand-in -> the character that it hides. Control tokens are found first, then put back.
        """
        restore = str.maketrans(dict(hidden))
        ids: list[int] = []
        begin = 0
        for match in self.control_text.pattern.finditer(text):
            if match.start() > begin:
                ids += self.encode_plain(text[begin : match.start()].translate(restore))
            ids.append(self.control_ids[match[0]])
            begin = match.end()
        if begin < len(text):
            ids += self.encode_plain(text[begin:].translate(restore))
        return ids


class Tokenizer:
    """One model's tokenizer. Safe to share between threads.

    Args:
        encoder: text to ids.
        tokens: text of every id, as the vocabulary spells it.
        pieces: token id -> bytes; raises InvalidParameter for an id out of range.
        drop_space: decoding leaves out the first space of a text.
        bounds: tokens at the ends of texts.
        chat_template: None for a base model.
        pair_text: for a query and a document; None for an encoder, which wants them one after the other.
        fim_tokens: for filling in the middle; None if the model has none.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        tokens: Sequence[str],
        pieces: Mapping[int, bytes],
        drop_space: bool,
        bounds: Bounds,
        chat_template: ChatTemplate | None,
        pair_text: PairText | None = None,
        fim_tokens: FimTokens | None = None,
    ) -> None:
        self._encoder = encoder
        self._tokens = tokens
        self._pieces = pieces
        self._drop_space = drop_space
        self._bounds = bounds
        self.chat_template = chat_template
        self._pair_text = pair_text
        self.fim_tokens = fim_tokens
        self.special_ids = encoder.special_ids

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self._tokens)

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, None if the model has none."""
        return self._bounds.bos_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer, sorted."""
        return self._bounds.stop_ids

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Control tokens, text to id."""
        return self._encoder.control_ids

    @property
    def bos_token(self) -> str:
        """Text of the token that begins a text, "" if the model has none."""
        return "" if self._bounds.bos_id is None else self._tokens[self._bounds.bos_id]

    @property
    def eos_token(self) -> str:
        """Text of the token that the file calls its end, "" if it names none."""
        return "" if self._bounds.eos_id is None else self._tokens[self._bounds.eos_id]

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: half surrogate pairs become U+FFFD.
            add_special_tokens: put the tokens around it that the model expects around a prompt. A first token that
                is already there is not doubled.
            parse_special: text of a control token becomes that token. Never for text from a user.
        """
        ids = self._encoder.encode_parsing(text) if parse_special else self._encoder.encode_plain(text)
        return self._bounded(ids) if add_special_tokens else ids

    def encode_pair(self, query: str, document: str) -> list[int]:
        """Return the token ids of a query and a document as one text of a reranker.

        That is its own text around the two, in which only its own control tokens become tokens; without one,
        [CLS] query [SEP] document [SEP]. Raises TemplateError.
        """
        if self._pair_text is None:
            return _joined(self.encode(query), self.encode(document), self.encode(document, add_special_tokens=False))
        safe = self._encoder.control_text.hide([{"query": query, "document": document}], None, {})
        text = self._pair_text.fill(safe.messages[0]["query"], safe.messages[0]["document"])
        if not safe.hidden:
            return self._encoder.encode_parsing(text)
        return self._encoder.encode_with_hidden(text, safe.hidden)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Return the token ids of a conversation.

        The template's own control tokens become tokens; the same text inside a message or a tool stays text. Other
        keyword arguments go to ChatTemplate.render. Raises TemplateError.
        """
        if self.chat_template is None:
            raise TemplateError(_NO_TEMPLATE, parameter="messages")
        try:
            # In the form that the template sees: reading a tool's arguments may bring control text out of escapes.
            plain = normalise(messages, self.chat_template.source)
            safe = self._encoder.control_text.hide(plain, tools, kwargs)
            text = self.chat_template.render(
                safe.messages, tools=safe.tools, add_generation_prompt=add_generation_prompt, **safe.kwargs
            )
        except RecursionError as error:
            raise TemplateError(_TOO_DEEP, parameter="messages") from error
        if not safe.hidden:
            return self.encode(text, parse_special=True)
        return self._bounded(self._encoder.encode_with_hidden(text, safe.hidden))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the text of a conversation's prompt. Raises TemplateError.

        Read as a prompt again, a control token's text inside a message becomes that token; encode_chat keeps it text.
        """
        if self.chat_template is None:
            raise TemplateError(_NO_TEMPLATE, parameter="messages")
        try:
            return self.chat_template.render(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, **kwargs
            )
        except RecursionError as error:
            raise TemplateError(_TOO_DEEP, parameter="messages") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids: what a Detokenizer gives for them. Bytes that are no UTF-8 become U+FFFD."""
        detokenizer = self.detokenizer((), skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    @property
    def chat_template_source(self) -> str:
        """The chat template's text, "" for a base model."""
        return "" if self.chat_template is None else self.chat_template.source

    def detokenizer(
        self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True, shown: Sequence[str] = ()
    ) -> Detokenizer:
        """Return a Detokenizer for the answer to a prompt.

        Args:
            prompt_ids: the prompt.
            skip_special_tokens: leave out the text of control tokens,
            shown: except those with these texts.
        """
        kept = {self._encoder.control_ids[text] for text in shown if text in self._encoder.control_ids}
        return Detokenizer(
            self._pieces,
            hidden_ids=self.special_ids - kept if skip_special_tokens else frozenset(),
            drop_space=self._drop_space,
            prompt_ids=prompt_ids,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for. Raises InvalidParameter if there is no such token."""
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it. Raises InvalidParameter if there is no such token."""
        if not 0 <= token_id < len(self._tokens):
            message = f"token id {token_id} is out of range; this model has ids 0 to {len(self._tokens) - 1}"
            raise InvalidParameter(message)
        return self._tokens[token_id]

    def _bounded(self, ids: list[int]) -> list[int]:
        """Put the first and the last token around ids, unless they are there."""
        first, last = self._bounds.first_id, self._bounds.last_id
        if first is not None and ids[:1] != [first]:
            ids = [first, *ids]
        if last is not None and ids[-1:] != [last]:
            ids = [*ids, last]
        return ids


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    if len(text) < _LONG_TEXT_CHARS:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    # Without offsets: half the time and memory.
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _valid_text(text: str) -> str:
    """Return text without halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _joined(first: list[int], second: list[int], plain: list[int]) -> list[int]:
    """Return two texts one after the other, the second without what stands before its `plain` tokens: one at most."""
    num_before = 0 if second[: len(plain)] == plain else 1
    return first + second[num_before:]
