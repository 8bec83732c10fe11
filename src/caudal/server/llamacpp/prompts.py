"""Prompts as llama-server takes them: text, token ids, a mixture of both, or a list of such prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.openai.sampling_fields import check_token_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.loaded_model import LoadedModel
    from caudal.server.tokenizer_port import ServedTokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model reads it, and its text with control tokens, which answers repeat."""

    token_ids: list[int]
    text: str


def prompts_of(given: Any, parameter: str = "prompt") -> list[str | list[str | int]]:
    """Return the prompts of a field. A list of texts is a batch; a list with an id in it is one prompt.

    Raises:
        RequestError: it has another form, or pictures.
    """
    if isinstance(given, list) and given and not _is_mixed(given):
        prompts = [_single(item, parameter) for item in given]
    else:
        prompts = [_single(given, parameter)]
    return prompts


def _is_mixed(items: Sequence[Any]) -> bool:
    return any(isinstance(item, int) for item in items)


def _single(given: Any, parameter: str) -> str | list[str | int]:
    if isinstance(given, str):
        return given
    if isinstance(given, dict) and isinstance(given.get("prompt_string"), str):
        if given.get("multimodal_data"):
            message = "multimodal_data is not supported by this server; send text only"
            raise UnsupportedParameter(message, parameter="multimodal_data")
        return str(given["prompt_string"])
    is_list = isinstance(given, list) and given
    if is_list and all(isinstance(item, int | str) and not isinstance(item, bool) for item in given):
        return list(given)
    message = f"{parameter} is {_kind(given)}; expected a text, token ids, a mixture of both, or a list of such prompts"
    raise InvalidParameter(message, parameter=parameter)


def _kind(given: Any) -> str:
    if given is None:
        return "missing"
    return "an empty list" if given == [] else f"of type {type(given).__name__}, or holds something else"


def token_ids_of(
    prompt: str | list[str | int],
    tokenizer: ServedTokenizer,
    *,
    add_special: bool = True,
    parse_special: bool = True,
    parameter: str = "prompt",
) -> list[int]:
    """Return a prompt's token ids. In a mixture, what belongs before a prompt is put before a text at its beginning.

    Raises:
        InvalidParameter: an id outside the vocabulary.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special_tokens=add_special, parse_special=parse_special)
    check_token_ids([item for item in prompt if isinstance(item, int)], tokenizer, parameter)
    ids: list[int] = []
    for number, item in enumerate(prompt):
        if isinstance(item, int):
            ids.append(item)
        else:
            first = add_special and number == 0
            ids += tokenizer.encode(item, add_special_tokens=first, parse_special=parse_special)
    return ids


async def read_prompts(given: Any, model: LoadedModel, *, most: int, num_chars: int) -> list[Prompt]:
    """Return the prompts of a request, at most so many.

    Raises:
        RequestError: they have another form, or there are too many.
        PromptTooLong: one has more ids and texts than the model reads tokens.
    """
    for prompt in (given, *given) if isinstance(given, list) and len(given) <= most else (given,):
        if isinstance(prompt, list) and len(prompt) > most and _is_mixed(prompt):
            model.check_reads(len(prompt), "prompt")
    prompts = prompts_of(given)
    if len(prompts) > most:
        message = f"prompt has {len(prompts)} prompts; expected at most {most}"
        raise InvalidParameter(message, parameter="prompt")

    def work() -> list[Prompt]:
        for prompt in prompts:
            model.check_text(num_chars_of(prompt), "prompt")
        return [prompt_of(token_ids_of(prompt, model.tokenizer), model.tokenizer) for prompt in prompts]

    return await model.tokenize(work, num_chars)


def num_chars_of(prompt: str | list[str | int]) -> int:
    """Return how many characters a prompt's texts have."""
    return len(prompt) if isinstance(prompt, str) else sum(len(item) for item in prompt if isinstance(item, str))


def prompt_of(token_ids: list[int], tokenizer: ServedTokenizer) -> Prompt:
    """Return a prompt of token ids."""
    return Prompt(token_ids, tokenizer.decode(token_ids, skip_special_tokens=False))
