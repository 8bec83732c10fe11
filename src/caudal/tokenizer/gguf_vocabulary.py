"""The tokenizer part of GGUF metadata, checked and with its defaults filled in.

Source: the GGUF specification, "Tokenizer" (keys that begin with tokenizer.ggml.).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from caudal.errors import CheckpointError
from caudal.tokenizer.stop_tokens import stop_ids_of, with_control_turns
from caudal.tokenizer.token_types import CONTROL, NORMAL, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T = TypeVar("_T", str, int, float)


@dataclass(frozen=True)
class GgufVocabulary:
    """Tokens and settings of one tokenizer.

    Attributes:
        model: the kind: "gpt2", "llama", "bert", ...
        pre: the pre-tokeniser's name, None when the file has none.
        tokens: text of every token id, in the file's own spelling.
        token_types: one of NORMAL to BYTE for every token id.
        scores: empty where the kind has none.
        merges: "left right" strings, empty where the kind has none.
        add_bos: None when the file does not say.
        stop_ids: ids that end an answer, sorted.
    """

    model: str
    pre: str | None
    tokens: Sequence[str]
    token_types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    separator_id: int | None
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool
    lowercase: bool
    stop_ids: tuple[int, ...]
    chat_template: str | None
    rerank_template: str | None

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens: matched in templates, never in a user's text."""
        return frozenset(i for i, kind in enumerate(self.token_types) if kind in (CONTROL, UNKNOWN))


class _Reader:
    """Typed access to the keys, with errors that name the key and the file."""

    def __init__(self, metadata: Mapping[str, object], path: object) -> None:
        self._metadata = metadata
        self._path = path

    def fail(self, fact: str) -> NoReturn:
        raise CheckpointError(fact, path=self._path)

    def scalar(self, key: str, kind: type[_T]) -> _T | None:
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is not str and isinstance(value, bool)):
            self.fail(f"{key} is {type(value).__name__} {str(value)[:40]!r}; expected {kind.__name__}")
        return value

    def flag(self, key: str) -> bool | None:
        value = self._metadata.get(key)
        if value is None:
            return None
        if value not in (True, False):
            self.fail(f"{key} is {str(value)[:40]!r}; expected a bool")
        return bool(value)

    def array(self, key: str, kind: type[_T]) -> Sequence[_T] | None:
        value = self._metadata.get(key)
        if value is None:
            return None
        items = value
        if not isinstance(items, list | tuple):
            self.fail(f"{key} is {type(value).__name__}; expected an array of {kind.__name__}")
        allowed = {kind, int} if kind is float else {kind}
        kinds = set(map(type, items))
        if not kinds <= allowed:
            wrong = min(k.__name__ for k in kinds - allowed)
            self.fail(f"{key} holds {wrong}; expected only {kind.__name__}")
        return items

    def token_id(self, key: str, default: int | None, num_tokens: int) -> int | None:
        value = self.scalar(f"tokenizer.ggml.{key}", int)
        if value is None:
            return default if default is not None and default < num_tokens else None
        if value in (0xFFFFFFFF, -1):  # how some writers spell "none"
            return None
        if not 0 <= value < num_tokens:
            self.fail(f"tokenizer.ggml.{key} is {value}, but there are {num_tokens} tokens")
        return value


def read_vocabulary(metadata: Mapping[str, object], *, path: object = None) -> GgufVocabulary:
    """Read and check the tokenizer's keys. Raises CheckpointError naming the key that is missing or wrong."""
    read = _Reader(metadata, path)
    model = read.scalar("tokenizer.ggml.model", str)
    tokens = read.array("tokenizer.ggml.tokens", str)
    if model is None or not tokens:
        key = "model" if model is None else "tokens"
        read.fail(f"tokenizer.ggml.{key} is missing or empty; the file holds no tokenizer that can be used")
    arrays = _per_token_arrays(read, model, tokens)
    is_spm, is_bert = model == "llama", model == "bert"
    count = len(tokens)
    bos_id = read.token_id("bos_token_id", 1 if is_spm else None, count)
    if is_bert:
        bos_id = read.token_id("cls_token_id", 101 if bos_id is None else bos_id, count)
    eos_id = read.token_id("eos_token_id", 2 if is_spm else None, count)
    named = [read.token_id(f"{key}_token_id", None, count) for key in ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")]
    stop_ids = stop_ids_of(tokens, arrays[0], [eos_id, *named])
    space_prefix = read.flag("tokenizer.ggml.add_space_prefix")
    return GgufVocabulary(
        model=model,
        pre=read.scalar("tokenizer.ggml.pre", str),
        tokens=tokens,
        token_types=with_control_turns(tokens, arrays[0], stop_ids),
        scores=arrays[1],
        merges=arrays[2],
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=read.token_id("unknown_token_id", 0 if is_spm else 100 if is_bert else None, count),
        separator_id=read.token_id("seperator_token_id", 102 if is_bert else None, count),  # sic
        add_bos=True if is_bert else read.flag("tokenizer.ggml.add_bos_token"),
        add_eos=bool(read.flag("tokenizer.ggml.add_eos_token")) or is_bert,
        add_space_prefix=is_spm if space_prefix is None else space_prefix,
        lowercase=read.flag("tokenizer.ggml.normalizer.lowercase") is not False,
        stop_ids=stop_ids,
        chat_template=read.scalar("tokenizer.chat_template", str),
        rerank_template=read.scalar("tokenizer.chat_template.rerank", str),
    )


def _per_token_arrays(
    read: _Reader, model: str, tokens: Sequence[str]
) -> tuple[Sequence[int], Sequence[float], Sequence[str]]:
    """Return token types, scores and merges, with their lengths checked."""
    types = read.array("tokenizer.ggml.token_type", int)
    scores = read.array("tokenizer.ggml.scores", float)
    merges = read.array("tokenizer.ggml.merges", str)
    if model in ("gpt2", "gemma4") and merges is None:
        read.fail(f"tokenizer.ggml.merges is missing; the tokenizer model {model!r} needs it")
    if model == "llama" and scores is None:
        read.fail("tokenizer.ggml.scores is missing; the tokenizer model 'llama' needs it")
    for key, values in (("token_type", types), ("scores", scores)):
        if values is not None and len(values) != len(tokens):
            read.fail(f"tokenizer.ggml.{key} has {len(values)} values, but there are {len(tokens)} tokens")
    return types if types is not None else [NORMAL] * len(tokens), scores or (), merges or ()
