"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Pattern:
    """One stop string and how much of it the text's end matches now.

    Source: Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0] * len(text)
        length = 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = self._fallback[length - 1]
            length += text[i] == text[length]
            self._fallback[i] = length

    def step(self, character: str) -> int:
        """Take one more character; return how many of the stop string's characters now match."""
        matched, text = self.matched, self.text
        while matched and character != text[matched]:
            matched = self._fallback[matched - 1]
        self.matched = matched + (character == text[matched])
        return self.matched


class StopMatcher:
    """Finds the first stop string to be completed, and lets through all text that cannot be part of one.

    Of several completed by the same character the longest counts. The cutting of the text into pushes makes no
    difference. Work is linear in the text for each stop string.

    Args:
        stop: the stop strings. Raises InvalidParameter if one is empty.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if any(not text for text in stop):
            message = "a stop string is empty; it would end every answer at once. Leave it out"
            raise InvalidParameter(message, parameter="stop")
        self._patterns = [_Pattern(text) for text in sorted(set(stop), key=lambda text: (-len(text), text))]
        self._held = ""
        self._found: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take new text; return the text to show and the stop string found, if one is complete.

        Text from the stop string on is never shown, and nothing is shown after it.
        """
        if self._found is not None:
            return "", self._found
        if not self._patterns or not text:
            return text, None
        for i, character in enumerate(text):
            # All of them step, also when one is found: a list, not a generator.
            complete = [p for p in self._patterns if p.step(character) == len(p.text)]
            if complete:
                self._found = complete[0].text
                shown = (self._held + text[: i + 1])[: -len(self._found)]
                self._held = ""
                return shown, self._found
        whole = self._held + text
        num_held = max(p.matched for p in self._patterns)
        cut = len(whole) - num_held
        self._held = whole[cut:]
        return whole[:cut], None

    def flush(self) -> str:
        """Return the text held back, at the end of an answer that no stop string ended."""
        held, self._held = self._held, ""
        return held
