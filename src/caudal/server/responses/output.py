"""The output of a response: the parts of an answer as items. Streams and whole bodies are made by the same object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.responses.open_items import OpenCall, OpenCustomCall, OpenMessage, OpenReasoning
from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.openai.chat_protocol import TokenLogprob
    from caudal.server.responses.events import AnswerEvent
    from caudal.server.responses.items import OutputItem
    from caudal.server.responses.open_items import OpenItem
    from caudal.server.responses.tools import ToolNames
    from caudal.tools.parts import Part


class Output:
    """Items in the order in which their parts come; an item ends when a part of another kind comes.

    Args:
        names: what the API calls the tools.
        as_summary, is_sealed: see OpenReasoning.

    Attributes:
        finished: the items that are whole.
    """

    def __init__(self, names: ToolNames, *, as_summary: bool = False, is_sealed: bool = False) -> None:
        self._names = names
        self._as_summary = as_summary
        self._is_sealed = is_sealed
        self._open: OpenItem | None = None
        self._logprobs: list[TokenLogprob] = []
        self.finished: list[OutputItem] = []

    def push(self, parts: Sequence[Part], logprobs: Sequence[TokenLogprob] = ()) -> list[AnswerEvent]:
        """Return what parts add. The log-probabilities are those of the parts' tokens; only text shows them.

        Those of tokens whose text is held back come with the next text.
        """
        events: list[AnswerEvent] = []
        self._logprobs += logprobs
        for part in parts:
            shown = self._logprobs if isinstance(part, TextPart) else []
            self._logprobs = []
            events += self._push(part, shown)
        return events

    def finish(self, status: str) -> list[AnswerEvent]:
        """Return the end of the last item. An answer without any has an empty message: clients look for one."""
        events: list[AnswerEvent] = [] if self._open or self.finished else self._begin(OpenMessage(0))
        if self._logprobs and isinstance(self._open, OpenMessage):
            events += self._open.add("", self._logprobs)
        return events + self._end(status)

    def items(self) -> list[OutputItem]:
        """Return the items as they are now."""
        return [*self.finished, self._open.item("incomplete")] if self._open is not None else list(self.finished)

    def _push(self, part: Part, logprobs: list[TokenLogprob]) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if isinstance(part, CallBegin):
            events = self._end("completed")
            tool = self._names.tool(part.name)
            index = len(self.finished)
            return events + self._begin(OpenCustomCall(index, tool) if tool.is_custom else OpenCall(index, tool))
        if isinstance(part, TextPart) and not isinstance(self._open, OpenMessage):
            events = self._end("completed")
            events += self._begin(OpenMessage(len(self.finished)))
        elif isinstance(part, ReasoningPart) and not isinstance(self._open, OpenReasoning):
            events = self._end("completed")
            index = len(self.finished)
            events += self._begin(OpenReasoning(index, as_summary=self._as_summary, is_sealed=self._is_sealed))
        assert self._open is not None, "a parser tells of a call's beginning before its arguments"
        assert isinstance(self._open, OpenCall | OpenCustomCall) == isinstance(part, CallArguments)
        return events + self._open.add(part.text, logprobs)

    def _begin(self, item: OpenItem) -> list[AnswerEvent]:
        self._open = item
        return item.begin()

    def _end(self, status: str) -> list[AnswerEvent]:
        if self._open is None:
            return []
        events = self._open.end(status)
        self.finished.append(self._open.item(status))
        self._open = None
        return events
