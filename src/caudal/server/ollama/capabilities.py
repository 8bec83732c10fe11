"""What a model can do, read from its chat template: the one place where models say it."""

from __future__ import annotations

_THINKING = ("enable_thinking", "<think>", "reasoning_content", "reasoning_effort", ".thinking", "<|channel|>")


def uses_tools(template: str) -> bool:
    """Whether a conversation's prompt can show tools."""
    return "tools" in template


def thinks(template: str) -> bool:
    """Whether the model's template knows of reasoning before the answer."""
    return any(mark in template for mark in _THINKING)


def capabilities_of(template: str, *, fills_in_the_middle: bool) -> list[str]:
    """Return what Ollama's clients look for in a model's description."""
    found = ["completion"]
    if uses_tools(template):
        found.append("tools")
    if thinks(template):
        found.append("thinking")
    if fills_in_the_middle:
        found.append("insert")
    return found
