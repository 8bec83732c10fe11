"""How models mark their reasoning."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What ends a turn, or begins one, in prompts: behind it nothing is inside of reasoning that began before.
_TURN = re.compile(r"<\||<\uff5c|\[/?INST\]|</s>|<(?:end|start)_of_turn>|<turn\|>|<seed:[be]os>|\]~b\]|\[e~\[")


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """Reasoning between two markers.

    Attributes:
        begin: begins it.
        end: ends it.
        anywhere: it may begin after text and calls too; otherwise `begin` is text there.
    """

    begin: str
    end: str
    anywhere: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Both."""
        return (self.begin, self.end)

    def is_open(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends so leaves the model inside of its reasoning."""
        _, begin, after = prompt_tail.rpartition(self.begin)
        return bool(begin) and self.end not in after and not _TURN.search(after)
