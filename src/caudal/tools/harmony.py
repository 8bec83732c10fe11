"""gpt-oss's format: an answer of messages, each with a header that says its channel and who it is for.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>

Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from caudal.tools.calls import Calls
from caudal.tools.literals import LiteralReader
from caudal.tools.marked_parser import TapeParser
from caudal.tools.tape import SPACES, Malformed, Markers

if TYPE_CHECKING:
    from caudal.tools.calls import Schemas
    from caudal.tools.tape import Steps

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
_ENDS = Markers([END, CALL, RETURN, START])
_HEADERS = Markers([START, CHANNEL, CONSTRAIN, MESSAGE])
_RECIPIENT = re.compile(r"(?:^|\s)to=(?:functions\.)?([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w*)")
_HEADER_TEXT = re.compile(r"[^<]+")
_MAX_HEADER_CHARS = 512


class HarmonyParser(TapeParser):
    """Reads messages. Analysis is reasoning, commentary to a function a call, the rest text.

    Args:
        schemas: the tools; without any, a call is text with its markers.
        separates_reasoning: tell reasoning from text; otherwise it is text with its markers.
        opens_reasoning: the answer begins inside of analysis.
    """

    def __init__(self, schemas: Schemas, *, separates_reasoning: bool, opens_reasoning: bool) -> None:
        super().__init__()
        self._calls = Calls(self._tape, self._parts, schemas)
        self._separates_reasoning = separates_reasoning
        self._opens_reasoning = opens_reasoning

    def _read(self) -> Steps[None]:
        if self._opens_reasoning:
            yield from self._analysis("")
        else:
            yield from self._tape.copy_run(SPACES, self._parts.text)
            if (yield from self._tape.at("to=")):
                yield from self._message("")
        while True:
            header = yield from self._tape.copy_until(_HEADERS, self._parts.text)
            if not header:
                return
            yield from self._message(header)

    def _message(self, begin: str) -> Steps[None]:
        """Read a message of which the first marker was read."""
        header = begin + (yield from self._header(begin))
        if not header.endswith(MESSAGE):
            self._parts.text(header)  # not a header after all
            return
        channel = _CHANNEL_NAME.search(header)
        recipient = _RECIPIENT.search(header.replace(CHANNEL, " ").replace(CONSTRAIN, " ").replace(MESSAGE, " "))
        if recipient and recipient[1] != "assistant" and (channel is None or channel[1] != "final"):
            if self._calls.schemas:
                yield from self._call(self._arguments(recipient[1]), self._calls, header)
            else:
                yield from self._verbatim(header)
        elif channel is not None and channel[1] == "analysis":
            yield from self._analysis(header)
        else:
            if self._parts.has_text:
                self._parts.text("\n")
            yield from self._tape.copy_until(_ENDS, self._parts.text, take=False)
        yield from self._tape.accept(END, CALL, RETURN)

    def _header(self, begin: str) -> Steps[str]:
        """Read a header up to and with its end, or up to what shows that it is none."""
        header, marker = "", begin
        while marker != MESSAGE and len(header) < _MAX_HEADER_CHARS:
            try:
                header += yield from self._tape.word(_HEADER_TEXT, _MAX_HEADER_CHARS)
            except Malformed:
                break
            marker = yield from self._tape.accept(CHANNEL, CONSTRAIN, MESSAGE, START)
            if not marker:
                break
            header += marker
        return header

    def _analysis(self, header: str) -> Steps[None]:
        if not self._separates_reasoning:
            yield from self._verbatim(header)
            return
        self._parts.end_text()
        yield from self._tape.copy_until(_ENDS, self._parts.reasoning, take=False)
        self._parts.end_reasoning()
        yield from self._tape.accept(END, CALL, RETURN)

    def _verbatim(self, header: str) -> Steps[None]:
        """Read a message as text with its markers."""
        self._parts.text(header)
        yield from self._tape.copy_until(_ENDS, self._parts.text, take=False)
        self._parts.text((yield from self._tape.accept(END, CALL, RETURN)))

    def _arguments(self, name: str) -> Steps[None]:
        next_one = yield from self._tape.skip_space()
        if next_one and next_one != "{" and not (yield from self._tape.at(*_ENDS.texts)):
            raise Malformed
        self._calls.begin(name)
        if next_one == "{":
            yield from LiteralReader(self._tape, self._calls.arguments, stops=_ENDS.texts).value()
        self._calls.end()
        yield from self._tape.skip_space()
