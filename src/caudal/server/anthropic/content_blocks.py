"""The parts of an answer as content blocks: the events of a stream and the finished blocks come from one place."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from caudal.server.anthropic.answer_protocol import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    ContentBlock,
    Delta,
    InputJSONDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from caudal.server.call_arguments import arguments_of
from caudal.server.sealed_reasoning import seal, signature
from caudal.tools.parts import CallBegin, ReasoningPart, TextPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.tools.parts import Part


def new_tool_use_id() -> str:
    """Return an id for a call of a tool."""
    return f"toolu_{secrets.token_hex(12)}"


class ContentBlocks:
    """Blocks in the order in which their parts come; a block ends when a part of another kind comes.

    Args:
        hides_thinking: thinking blocks hold no text, and their signature the reasoning.

    Attributes:
        finished: the blocks that are whole.
        has_calls: there is a call of a tool among the blocks.
    """

    def __init__(self, *, hides_thinking: bool = False) -> None:
        self._hides_thinking = hides_thinking
        self._open: ContentBlock | None = None
        self._texts: list[str] = []
        self.finished: list[ContentBlock] = []
        self.has_calls = False

    def push(self, parts: Sequence[Part]) -> list[BlockEvent]:
        """Return what parts add."""
        return [event for part in parts for event in self._push(part)]

    def finish(self) -> list[BlockEvent]:
        """Return the end of the last block. An answer without any has an empty one: clients look at the first."""
        events = [] if self._open or self.finished else self._begin(TextBlock())
        return events + self._end()

    def _push(self, part: Part) -> list[BlockEvent]:
        if isinstance(part, CallBegin):
            self.has_calls = True
            return self._end() + self._begin(ToolUseBlock(id=new_tool_use_id(), name=part.name, input={}))
        if isinstance(part, TextPart):
            begin = [] if isinstance(self._open, TextBlock) else self._end() + self._begin(TextBlock())
            return begin + self._add(part.text, TextDelta(part.text))
        if isinstance(part, ReasoningPart):
            begin = [] if isinstance(self._open, ThinkingBlock) else self._end() + self._begin(ThinkingBlock())
            shown = None if self._hides_thinking else ThinkingDelta(part.text)
            return begin + self._add(part.text, shown)
        assert isinstance(self._open, ToolUseBlock), "a parser tells of a call's beginning before its arguments"
        return self._add(part.text, InputJSONDelta(part.text))

    @property
    def _index(self) -> int:
        return len(self.finished)

    def _begin(self, block: ContentBlock) -> list[BlockEvent]:
        self._open = block
        self._texts = []
        return [BlockStart(self._index, block)]

    def _add(self, text: str, delta: Delta | None) -> list[BlockEvent]:
        self._texts.append(text)
        return [] if delta is None else [BlockDelta(self._index, delta)]

    def _end(self) -> list[BlockEvent]:
        if self._open is None:
            return []
        events: list[BlockEvent] = []
        block, text = self._open, "".join(self._texts)
        if isinstance(block, TextBlock):
            block = TextBlock(text=text)
        elif isinstance(block, ToolUseBlock):
            block = ToolUseBlock(id=block.id, name=block.name, input=arguments_of(text))
        else:
            sealed = seal(text) if self._hides_thinking else signature(text)
            block = ThinkingBlock(thinking="" if self._hides_thinking else text, signature=sealed)
            events.append(BlockDelta(self._index, SignatureDelta(sealed)))
        events.append(BlockStop(self._index))
        self.finished.append(block)
        self._open = None
        return events
