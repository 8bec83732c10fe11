"""A field that holds one text, several, or their token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_texts(given: str | Sequence[str | int | list[int]], parameter: str, *, most: int) -> list[str | list[int]]:
    """Return the texts of a field, each as it was given.

    Raises:
        InvalidParameter: none, more than `most`, or a mixture of token ids and texts.
    """
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    texts = [item for item in given if not isinstance(item, int)]
    if not texts or len(texts) != len(given):
        message = f"{parameter} is empty or mixes token ids with texts; expected a text, token ids, or a list of either"
        raise InvalidParameter(message, parameter=parameter)
    if len(texts) > most:
        message = f"{parameter} has {len(texts)} texts; expected at most {most}"
        raise InvalidParameter(message, parameter=parameter)
    return texts
