"""The vocabulary that an engine is told before its first grammar: made once, in a thread, as it may be large."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from caudal.messages import AddRequest, Vocabulary


class VocabularySource:
    """Makes the vocabulary when it is first needed, and knows whether the engine has it."""

    def __init__(self) -> None:
        self._make: Callable[[], Vocabulary] | None = None
        self._making: asyncio.Future[Vocabulary] | None = None
        self._vocabulary: Vocabulary | None = None
        self._is_told = False

    def know(self, make: Callable[[], Vocabulary]) -> None:
        """Take what makes the vocabulary; it is called in a thread."""
        self._make = make
        self._making = self._vocabulary = None
        self._is_told = False

    def forget_told(self) -> None:
        """Note that the engine is a new one."""
        self._is_told = False

    async def prepare(self) -> None:
        """Make the vocabulary, unless that is done. Once it could not be made, the next call tries again.

        Raises:
            InvalidParameter: nobody said how.
            Exception: whatever kept it from being made.
        """
        if self._vocabulary is not None:
            return
        if self._make is None:
            message = "this engine's vocabulary is not known here, and a grammar needs it; leave the grammar out"
            raise InvalidParameter(message, parameter="grammar")
        if self._making is None or _has_failed(self._making):
            self._making = asyncio.ensure_future(asyncio.to_thread(self._make))
        self._vocabulary = await asyncio.shield(self._making)

    def due(self, request: AddRequest) -> Vocabulary | None:
        """Return what must be sent before a request, if it must."""
        if not request.grammar or self._is_told:
            return None
        self._is_told = self._vocabulary is not None
        return self._vocabulary


def _has_failed(making: asyncio.Future[Vocabulary]) -> bool:
    """Whether there will never be a result."""
    return making.done() and (making.cancelled() or making.exception() is not None)
