"""An answer's text as it arrives, read once from front to back by generators that wait for what is missing.

A generator that reads here never sees where one piece of text ended and the next began: what it does depends on the
text alone. It yields where it must wait for more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], object]

SPACE = " \t\r\n"
SPACES = re.compile(r"[ \t\r\n]+")


class Malformed(Exception):
    """The text is not what the format prescribes."""


class Truncated(Exception):
    """The answer ended inside a call."""


class Markers:
    """Texts to look for: the first to begin counts, of several that begin there the longest.

    Args:
        texts: none of them empty.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted(set(texts), key=lambda text: (-len(text), text))
        self.texts = tuple(longest_first)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._beginnings = frozenset(text[:i] for text in longest_first for i in range(1, len(text)))
        first = "".join(re.escape(character) for character in sorted({text[0] for text in longest_first}))
        self._first = re.compile(f"[{first}]" if first else r"(?!)")
        self._longest = max(map(len, longest_first), default=1)

    def search(self, text: str, start: int) -> tuple[int, int] | None:
        """Return where the first marker from `start` on begins and ends."""
        found = self._pattern.search(text, start)
        return found.span() if found else None

    def undecided(self, text: str, start: int) -> int:
        """Return where, at the end of the text, a marker may have begun; the text's length if none has."""
        for found in self._first.finditer(text, max(start, len(text) - self._longest + 1)):
            if text[found.start() :] in self._beginnings:
                return found.start()
        return len(text)


class Tape:
    """The text that was not read yet, and a memory of what was read since `keep`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._kept: list[str] | None = None

    def feed(self, text: str) -> None:
        """Add text at the end."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that nothing follows."""
        self._ended = True

    def keep(self, text: str = "") -> None:
        """Remember from here on what is read, with `text` before it."""
        self._kept = [text]

    def forget(self) -> str:
        """Remember no more; return what was remembered."""
        kept, self._kept = self._kept, None
        return "".join(kept or ())

    def take(self, num_chars: int) -> str:
        """Read that many characters, which must have arrived."""
        taken = self._text[self._at : self._at + num_chars]
        self._at += num_chars
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def unread(self, text: str) -> None:
        """Put back what was read last."""
        start = self._at - len(text)
        if start >= 0 and self._text.startswith(text, start):
            self._at = start
        else:
            self._text = text + self._text[self._at :]
            self._at = 0
        kept, excess = self._kept, len(text)
        while kept and excess:
            last = kept.pop()
            if len(last) > excess:
                kept.append(last[: len(last) - excess])
            excess -= min(excess, len(last))

    @property
    def rest(self) -> str:
        """The text that has arrived and was not read."""
        return self._text[self._at :]

    @property
    def ahead(self) -> str:
        """The next character if it has arrived, otherwise ""."""
        return self._text[self._at : self._at + 1]

    def peek(self) -> Steps[str]:
        """Return the next character, "" at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def at(self, *texts: str) -> Steps[str]:
        """Return the longest of the texts that comes next, "" if none does."""
        while True:
            ahead = len(self._text) - self._at
            found = max((t for t in texts if self._text.startswith(t, self._at)), key=len, default="")
            rest = self._text[self._at :] if ahead < max(map(len, texts), default=0) else None
            if self._ended or rest is None or not any(len(t) > ahead and t.startswith(rest) for t in texts):
                return found
            yield

    def accept(self, *texts: str) -> Steps[str]:
        """Read the longest of the texts that comes next; return it, "" if none does."""
        found = yield from self.at(*texts)
        self.take(len(found))
        return found

    def expect(self, *texts: str) -> Steps[str]:
        """Read one of the texts. Raises Malformed if none comes next, Truncated at the end."""
        found = yield from self.accept(*texts)
        if found:
            return found
        if (yield from self.peek()):
            raise Malformed
        raise Truncated

    def copy_run(self, pattern: re.Pattern[str], sink: Sink) -> Steps[None]:
        """Read characters as long as the pattern, of one class of characters with +, matches them."""
        while True:
            found = pattern.match(self._text, self._at)
            if found:
                sink(self.take(found.end() - found.start()))
            if self._at < len(self._text) or self._ended:
                return
            yield

    def skip_space(self) -> Steps[str]:
        """Read white space; return the character after it, "" at the end."""
        yield from self.copy_run(SPACES, _drop)
        return (yield from self.peek())

    def word(self, pattern: re.Pattern[str], limit: int = 256) -> Steps[str]:
        """Read and return a run of characters. Raises Malformed, with nothing read, if it is longer than the limit."""
        word = ""
        while True:
            found = pattern.match(self._text, self._at)
            if found:
                word += self.take(min(found.end() - found.start(), limit + 1 - len(word)))
            if len(word) > limit:
                self.unread(word)
                raise Malformed
            if self._at < len(self._text) or self._ended:
                return word
            yield

    def copy_until(self, markers: Markers, sink: Sink, *, take: bool = True) -> Steps[str]:
        """Read up to a marker, and the marker too if it is to be taken; return it, "" at the end."""
        while True:
            text, start = self._text, self._at
            end = len(text) if self._ended else markers.undecided(text, start)
            found = markers.search(text, start)
            if found and found[0] < end:
                self._pass(found[0] - start, sink)
                if take:
                    return self.take(found[1] - found[0])
                return text[found[0] : found[1]]
            self._pass(end - start, sink)
            if self._ended:
                return ""
            yield

    def _pass(self, num_chars: int, sink: Sink) -> None:
        if num_chars:
            sink(self.take(num_chars))


def _drop(_: str) -> None:
    """Take text for nothing."""
