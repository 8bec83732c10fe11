"""What the tokenizer's files of a Hugging Face folder say, checked.

Sources: the `tokenizers` library's tokenizer.json; transformers' documentation of tokenizer_config.json,
generation_config.json and chat_template.jinja.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from caudal.errors import CheckpointError, UnsupportedFormat
from caudal.tokenizer.stop_tokens import stop_ids_of, with_control_turns
from caudal.tokenizer.token_types import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from caudal.checkpoint import HFFolder

TOKENIZER = "tokenizer.json"
MAX_TOKEN_ID = 1 << 24
_KINDS = ("BPE", "WordPiece", "WordLevel")


@dataclass(frozen=True)
class HFVocabulary:
    """One tokenizer.

    Attributes:
        settings: the object in tokenizer.json, its vocabulary holding the added tokens as well.
        added: tokens that are found before a text is split, as tokenizer.json lists them.
        tokens: text of every token id; ids that the model has and the tokenizer does not are padding.
        token_types: as in token_types, for every id.
        stop_ids: ids that end an answer, sorted.
        add_bos, add_eos: whether they are put around a text.
    """

    settings: Mapping[str, Any]
    added: Sequence[Mapping[str, Any]]
    tokens: Sequence[str]
    token_types: Sequence[int]
    bos_id: int | None
    eos_id: int | None
    stop_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    chat_template: str | None

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens: matched in templates, never in a user's text."""
        return frozenset(i for i, kind in enumerate(self.token_types) if kind in (CONTROL, UNKNOWN))

    def steps(self, part: str) -> Iterator[Mapping[str, Any]]:
        """Yield the steps of the normaliser, the pre-tokeniser or the decoder, sequences unrolled."""
        yield from _steps(self.settings.get(part))

    def with_template(self, source: str) -> HFVocabulary:
        """Return the same with another chat template."""
        return replace(self, chat_template=source)


def read_hf_vocabulary(folder: HFFolder) -> HFVocabulary:
    """Read and check the tokenizer's files.

    Raises:
        CheckpointError: there is no tokenizer, or it contradicts itself.
        UnsupportedFormat: it is of a kind that Caudal does not have.
    """
    return _Reader(folder).read()


class _Reader:
    """The reading of one folder."""

    def __init__(self, folder: HFFolder) -> None:
        self._folder = folder
        self._path: Path = folder.path / TOKENIZER
        self._config = folder.tokenizer_config
        self._settings = self._read_settings()

    def read(self) -> HFVocabulary:
        added = self._added()
        vocab = self._vocab(added)
        tokens, types = self._tokens(vocab, added)
        ids = {text: token_id for token_id, text in reversed(list(enumerate(tokens)))}
        bos_id, eos_id = (self._named(kind, ids, len(tokens)) for kind in ("bos", "eos"))
        stop_ids = stop_ids_of(tokens, types, [eos_id, *self._listed_eos(len(tokens))])
        first, last = self._around()
        return HFVocabulary(
            settings={**self._settings, "model": {**self._settings["model"], "vocab": vocab}},
            added=added,
            tokens=tokens,
            token_types=with_control_turns(tokens, types, stop_ids),
            bos_id=bos_id,
            eos_id=eos_id,
            stop_ids=stop_ids,
            add_bos=self._flag("add_bos_token", bos_id is not None and first == tokens[bos_id]),
            add_eos=self._flag("add_eos_token", eos_id is not None and last == tokens[eos_id]),
            chat_template=self._chat_template(),
        )

    def _read_settings(self) -> dict[str, Any]:
        text = self._folder.text(TOKENIZER)
        if text is None:
            fact = f"the folder holds no {TOKENIZER}; download it, or write it with transformers: "
            fact += "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            raise CheckpointError(fact, path=self._folder.path)
        try:
            settings = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._fail(f"this is no JSON: {error}")
        if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
            self._fail("the file holds no tokenizer: expected an object with a model in it")
        kind = settings["model"].get("type", "BPE")  # old files of BPE leave it out
        if kind not in _KINDS:
            fact = f"the tokenizer is a {str(kind)[:40]!r} model; Caudal knows {', '.join(_KINDS)}"
            raise UnsupportedFormat(fact, path=self._path)
        return settings

    def _added(self) -> list[Mapping[str, Any]]:
        added = self._settings.get("added_tokens") or []
        for entry in added if isinstance(added, list) else (added,):
            is_entry = isinstance(entry, dict) and isinstance(entry.get("content"), str)
            if not is_entry or not _is_id(entry.get("id")):
                self._fail(f"added_tokens holds {str(entry)[:80]}; expected objects with id and content")
        return [entry for entry in added if entry["content"]]

    def _vocab(self, added: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Return text -> id of all tokens."""
        vocab = self._settings["model"].get("vocab")
        if not isinstance(vocab, dict) or not all(_is_id(token_id) for token_id in vocab.values()):
            self._fail("model.vocab is no object of token ids")
        vocab = dict(vocab)
        for entry in added:
            known = vocab.setdefault(entry["content"], entry["id"])
            if known != entry["id"]:
                self._fail(f"token {entry['content'][:40]!r} has the ids {known} and {entry['id']}")
        if len(set(vocab.values())) != len(vocab):
            self._fail("two tokens have the same id")
        if not vocab:
            self._fail("there are no tokens")
        return vocab

    def _tokens(self, vocab: Mapping[str, int], added: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[int]]:
        """Return text and type of every id, as many as the model has."""
        count = max(vocab.values()) + 1
        model_size = self._folder.config.get("vocab_size")
        if _is_id(model_size):
            count = max(count, model_size)
        tokens = [f"[PAD{token_id}]" for token_id in range(count)]
        types = [UNUSED] * count
        for text, token_id in vocab.items():
            tokens[token_id], types[token_id] = text, NORMAL
        for entry in added:
            types[entry["id"]] = CONTROL if entry.get("special") else USER_DEFINED
        unknown = self._settings["model"].get("unk_token")
        if isinstance(unknown, str) and unknown in vocab:
            types[vocab[unknown]] = UNKNOWN
        return tokens, types

    def _named(self, kind: str, ids: Mapping[str, int], count: int) -> int | None:
        """Return the token that begins or ends texts: by its text, or by its id."""
        text = self._config.get(f"{kind}_token")
        if isinstance(text, dict):  # as older versions write it
            text = text.get("content")
        if isinstance(text, str) and text in ids:
            return ids[text]
        for source in (self._folder.generation_config, self._folder.config):
            value = source.get(f"{kind}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            if _is_id(value) and value < count:
                return value
        return None

    def _listed_eos(self, count: int) -> list[int]:
        """Return the ids that the configurations say end an answer."""
        found: list[int] = []
        for source in (self._folder.generation_config, self._folder.config):
            value = source.get("eos_token_id")
            found += [item for item in (value if isinstance(value, list) else [value]) if _is_id(item) and item < count]
        return found

    def _around(self) -> tuple[str | None, str | None]:
        """Return what the post-processor puts before and behind a text."""
        for step in _steps(self._settings.get("post_processor")):
            if step.get("type") in ("BertProcessing", "RobertaProcessing"):
                cls, sep = step.get("cls"), step.get("sep")
                return (cls or [None])[0], (sep or [None])[0]
            single = step.get("single")
            if step.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
                return _special(single[0]), _special(single[-1])
        return None, None

    def _flag(self, key: str, implied: bool) -> bool:  # noqa: FBT001 - what the files imply
        value = self._config.get(key)
        return value if isinstance(value, bool) else implied

    def _chat_template(self) -> str | None:
        """Return the file's template, else the configuration's: a text, or a list of named ones."""
        source = self._folder.text("chat_template.jinja")
        if source is not None:
            return source
        found = self._config.get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default") or next(iter(named.values()), None)
        return found if isinstance(found, str) else None

    def _fail(self, fact: str) -> NoReturn:
        raise CheckpointError(fact, path=self._path)


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what a part consists of; sequences may hold sequences."""
    if not isinstance(part, dict):
        return
    for key in ("normalizers", "pretokenizers", "processors", "decoders"):
        if isinstance(part.get(key), list):
            for inner in part[key]:
                yield from _steps(inner)
            return
    yield part


def _special(entry: Any) -> str | None:
    """Return the text of a special token in a template."""
    token = entry.get("SpecialToken") if isinstance(entry, dict) else None
    text = token.get("id") if isinstance(token, dict) else None
    return text if isinstance(text, str) else None


def _is_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MAX_TOKEN_ID
