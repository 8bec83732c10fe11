"""Items that are being written: each kind knows its events and what it is when it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import UNSET

from caudal.server.responses.events import (
    AnswerEvent,
    ArgumentsDoneEvent,
    CallDeltaEvent,
    InputDoneEvent,
    ItemEvent,
    PartEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    SummaryDeltaEvent,
    SummaryDoneEvent,
    SummaryPartEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from caudal.server.responses.items import (
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    SummaryText,
    new_id,
)
from caudal.server.sealed_reasoning import seal

if TYPE_CHECKING:
    from caudal.server.openai.chat_protocol import TokenLogprob
    from caudal.server.responses.tools import NamedTool

PART_ADDED = "response.content_part.added"
PART_DONE = "response.content_part.done"


class OpenItem(Protocol):
    """An item that grows."""

    def begin(self) -> list[AnswerEvent]:
        """Return what tells of its beginning."""

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[AnswerEvent]:
        """Return what tells of more text."""

    def end(self, status: str) -> list[AnswerEvent]:
        """Return what tells of its end."""

    def item(self, status: str) -> OutputItem:
        """Return it as it is now."""


class OpenMessage:
    """Text for the user. `index` is that of the item in the output, here and below."""

    def __init__(self, index: int) -> None:
        self._id = new_id("msg")
        self._index = index
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def begin(self) -> list[AnswerEvent]:
        """Return the item without content, and an empty part."""
        empty = MessageItem(id=self._id, status="in_progress", content=[])
        return [
            ItemEvent(type="response.output_item.added", output_index=self._index, item=empty),
            self._part(PART_ADDED),
        ]

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[AnswerEvent]:
        """Return a delta."""
        self._texts.append(text)
        self._logprobs += logprobs
        return [TextDeltaEvent(item_id=self._id, output_index=self._index, delta=text, logprobs=logprobs)]

    def end(self, status: str) -> list[AnswerEvent]:
        """Return the whole text, the part and the item."""
        content = self._content()
        return [
            TextDoneEvent(item_id=self._id, output_index=self._index, text=content.text, logprobs=content.logprobs),
            self._part(PART_DONE),
            ItemEvent(type="response.output_item.done", output_index=self._index, item=self.item(status)),
        ]

    def item(self, status: str) -> OutputItem:
        """Return the message."""
        return MessageItem(id=self._id, status=status, content=[self._content()])

    def _content(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=self._logprobs)

    def _part(self, kind: str) -> PartEvent:
        return PartEvent(type=kind, item_id=self._id, output_index=self._index, part=self._content())


class OpenReasoning:
    """Reasoning.

    Args:
        index: see OpenMessage.
        as_summary: it comes in the place of a summary.
        is_sealed: it comes sealed as well, for clients that send it back so.
    """

    def __init__(self, index: int, *, as_summary: bool, is_sealed: bool) -> None:
        self._id = new_id("rs")
        self._index = index
        self._as_summary = as_summary
        self._is_sealed = is_sealed
        self._texts: list[str] = []

    def begin(self) -> list[AnswerEvent]:
        """Return the item without content, and an empty part."""
        empty = ReasoningItem(id=self._id, status="in_progress")
        return [
            ItemEvent(type="response.output_item.added", output_index=self._index, item=empty),
            self._part("added"),
        ]

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[AnswerEvent]:  # noqa: ARG002 - only text has them
        """Return a delta."""
        self._texts.append(text)
        if self._as_summary:
            return [SummaryDeltaEvent(item_id=self._id, output_index=self._index, delta=text)]
        return [ReasoningDeltaEvent(item_id=self._id, output_index=self._index, delta=text)]

    def end(self, status: str) -> list[AnswerEvent]:
        """Return the whole text, the part and the item."""
        kind = SummaryDoneEvent if self._as_summary else ReasoningDoneEvent
        return [
            kind(item_id=self._id, output_index=self._index, text=self._text()),
            self._part("done"),
            ItemEvent(type="response.output_item.done", output_index=self._index, item=self.item(status)),
        ]

    def item(self, status: str) -> OutputItem:
        """Return the item."""
        text = self._text()
        return ReasoningItem(
            id=self._id,
            status=status,
            summary=[SummaryText(text=text)] if self._as_summary else [],
            content=UNSET if self._as_summary else [ReasoningText(text=text)],
            encrypted_content=seal(text) if self._is_sealed else UNSET,
        )

    def _text(self) -> str:
        return "".join(self._texts)

    def _part(self, what: str) -> PartEvent | SummaryPartEvent:
        text = self._text()
        if self._as_summary:
            return SummaryPartEvent(
                type=f"response.reasoning_summary_part.{what}",
                item_id=self._id,
                output_index=self._index,
                part=SummaryText(text=text),
            )
        return PartEvent(
            type=f"response.content_part.{what}",
            item_id=self._id,
            output_index=self._index,
            part=ReasoningText(text=text),
        )


class OpenCall:
    """A call of a function."""

    def __init__(self, index: int, tool: NamedTool) -> None:
        self._id = new_id("fc")
        self._call_id = new_id("call")
        self._index = index
        self._tool = tool
        self._texts: list[str] = []

    def begin(self) -> list[AnswerEvent]:
        """Return the item without arguments."""
        empty = self._item("in_progress", "")
        return [ItemEvent(type="response.output_item.added", output_index=self._index, item=empty)]

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[AnswerEvent]:  # noqa: ARG002 - only text has them
        """Return a delta."""
        self._texts.append(text)
        kind = "response.function_call_arguments.delta"
        return [CallDeltaEvent(type=kind, item_id=self._id, output_index=self._index, delta=text)]

    def end(self, status: str) -> list[AnswerEvent]:
        """Return the whole arguments, and the item."""
        return [
            ArgumentsDoneEvent(
                item_id=self._id, output_index=self._index, name=self._tool.name, arguments=self._arguments(status)
            ),
            ItemEvent(type="response.output_item.done", output_index=self._index, item=self.item(status)),
        ]

    def item(self, status: str) -> OutputItem:
        """Return the call."""
        return self._item(status, self._arguments(status))

    def _arguments(self, status: str) -> str:
        """Return what there is; a call that was cut off before its arguments has none, not empty ones."""
        return "".join(self._texts) or ("{}" if status == "completed" else "")

    def _item(self, status: str, arguments: str) -> FunctionCallItem:
        return FunctionCallItem(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._tool.name,
            namespace=self._tool.namespace or UNSET,
            arguments=arguments,
        )


class OpenCustomCall:
    """A call of a custom tool. Its input is inside the arguments, so it is told when they are whole."""

    def __init__(self, index: int, tool: NamedTool) -> None:
        self._id = new_id("ctc")
        self._call_id = new_id("call")
        self._index = index
        self._tool = tool
        self._texts: list[str] = []

    def begin(self) -> list[AnswerEvent]:
        """Return the item without input."""
        empty = self._item("in_progress", "")
        return [ItemEvent(type="response.output_item.added", output_index=self._index, item=empty)]

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[AnswerEvent]:  # noqa: ARG002 - only text has them
        """Return nothing yet."""
        self._texts.append(text)
        return []

    def end(self, status: str) -> list[AnswerEvent]:
        """Return the input, and the item."""
        text = self._input()
        kind = "response.custom_tool_call_input.delta"
        return [
            CallDeltaEvent(type=kind, item_id=self._id, output_index=self._index, delta=text),
            InputDoneEvent(item_id=self._id, output_index=self._index, input=text),
            ItemEvent(type="response.output_item.done", output_index=self._index, item=self.item(status)),
        ]

    def item(self, status: str) -> OutputItem:
        """Return the call."""
        return self._item(status, self._input())

    def _item(self, status: str, text: str) -> CustomCallItem:
        return CustomCallItem(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._tool.name,
            namespace=self._tool.namespace or UNSET,
            input=text,
        )

    def _input(self) -> str:
        """Return the text in the arguments; all of them if they are not what they should be."""
        arguments = "".join(self._texts)
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return arguments
        text = value.get("input") if isinstance(value, dict) else None
        return text if isinstance(text, str) else arguments
