"""A field that holds one text, several, or their token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.loaded_model import LoadedModel


def read_texts(
    given: str | Sequence[str | int | list[int]], parameter: str, model: LoadedModel, *, most: int
) -> list[str | list[int]]:
    """Return the texts of a field, each as it was given. Lists are measured before they are worked through.

    Raises:
        InvalidParameter: none, more than `most`, or a mixture of token ids and texts.
        PromptTooLong: more token ids than the model reads.
    """
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        model.check_reads(len(given), parameter)
        ids = [item for item in given if isinstance(item, int)]
        if len(ids) != len(given):
            raise _mixed(parameter)
        return [ids]
    if len(given) > most:
        message = f"{parameter} has {len(given)} texts; expected at most {most}"
        raise InvalidParameter(message, parameter=parameter)
    texts = [item for item in given if not isinstance(item, int)]
    if not texts or len(texts) != len(given):
        raise _mixed(parameter)
    for text in texts:
        if not isinstance(text, str):
            model.check_reads(len(text), parameter)
    return texts


def _mixed(parameter: str) -> InvalidParameter:
    message = f"{parameter} is empty or mixes token ids with texts; expected a text, token ids, or a list of either"
    return InvalidParameter(message, parameter=parameter)
