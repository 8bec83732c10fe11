"""Prompts with a gap: the text before it and after it, and other files of the repository.

Source: the layout that Qwen2.5-Coder was trained with (file level and repository level), which llama-server uses too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.loaded_model import LoadedModel
    from caudal.server.tokenizer_port import ServedTokenizer
    from caudal.tokenizer.fim_tokens import FimTokens

_REPOSITORY = "repository\n"
_FILE = "file\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFile:
    """A file of the same repository."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What is to be filled in.

    Attributes:
        before, after: the text around the gap.
        files: what the model may look at, the most important last.
    """

    before: str
    after: str
    files: Sequence[OtherFile] = ()


async def fill_in_prompt(gap: Gap, model: LoadedModel) -> list[int]:
    """Return the token ids of a prompt with a gap. Nothing of the texts is read as a control token, or cut.

    Raises:
        PromptTooLong: it is so long that it is not even tokenized.
        HTTPProblem: 501, the model has no tokens for that.
    """
    fim = model.tokenizer.fim_tokens
    if fim is None:
        message = f"the model {model.name!r} does not support insert: it has no tokens to fill in the middle of a text"
        raise HTTPProblem(501, message, code="not_supported", parameter="suffix")
    num_chars = len(gap.before) + len(gap.after) + sum(len(file.name) + len(file.text) for file in gap.files)

    def work() -> list[int]:
        model.check_text(num_chars, "prompt")
        return _token_ids(gap, fim, model.tokenizer)

    return await model.tokenize(work, num_chars)


def _token_ids(gap: Gap, fim: FimTokens, tokenizer: ServedTokenizer) -> list[int]:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    first = tokenizer.encode("")[:1]
    ids = first if first == [tokenizer.bos_token_id] else []
    if gap.files and fim.repository is not None:
        ids = [*ids, fim.repository, *encode(_REPOSITORY)]
    for file in gap.files:
        if fim.separator is None:
            ids += encode(f"{file.name}\n{file.text}\n")
        else:
            ids += [fim.separator, *encode(f"{file.name}\n{file.text}")]
    if gap.files and fim.separator is not None:
        ids += [fim.separator, *encode(_FILE)]
    return [*ids, fim.prefix, *encode(gap.before), fim.suffix, *encode(gap.after), fim.middle]
