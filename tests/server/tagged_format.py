"""A way in which a model may write, for tests of what comes after the parser: `<think>` and `<tool_call>`.

`CallingTokenizer` makes the scripted engine call the first tool that it is shown if a tool must be called.
"""

from __future__ import annotations

import json

from byte_tokenizer import ByteTokenizer

from caudal.tools.parts import CallArguments, CallBegin, ReasoningPart, TextPart

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


class TaggedFormat:
    name = "tagged"
    markers = ()
    reasoning = None
    is_harmony = False

    def opens_reasoning(self, prompt_tail):  # noqa: ARG002 - the answer says so itself
        return False

    def parser(self, **_):
        return TaggedParser()

    def call_grammar(self, tools, **_):  # noqa: ARG002 - the scripted engine does as it is told
        return ""


class TaggedParser:
    def __init__(self):
        self.rest = ""
        self.mode = "text"
        self.call = ""
        self.num_calls = 0

    def push(self, text):
        self.rest += text
        parts = []
        while self.rest:
            at, tag = min(((self.rest.find(tag), tag) for tag in TAGS if tag in self.rest), default=(-1, ""))
            if at < 0:
                held = max(n for n in range(len(self.rest) + 1) if self.rest.endswith(tuple(t[:n] for t in TAGS)))
                parts += self.told(self.rest[: len(self.rest) - held])
                self.rest = self.rest[len(self.rest) - held :]
                break
            parts += self.told(self.rest[:at])
            self.rest = self.rest[at + len(tag) :]
            if tag == "</tool_call>":
                parts += self.called()
            self.mode = {"<think>": "reasoning", "<tool_call>": "call"}.get(tag, "text")
        return parts

    def finish(self):
        text, self.rest = self.rest, ""
        return self.told(text)

    def told(self, text):
        if self.mode == "call":
            self.call += text
            return []
        return [{"text": TextPart, "reasoning": ReasoningPart}[self.mode](text)] if text else []

    def called(self):
        call, self.call = json.loads(self.call), ""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        middle = len(arguments) // 2
        return [
            CallBegin(index, call["name"]),
            CallArguments(index, arguments[:middle]),
            CallArguments(index, arguments[middle:]),
        ]


class CallingTokenizer(ByteTokenizer):
    """Writes down the last conversation, too."""

    def __init__(self):
        self.conversations = []

    def encode_chat(self, messages, tools=None, **variables):
        self.conversations.append((list(messages), tools, variables))
        messages = [dict(message) for message in messages]
        last = str(messages[-1].get("content"))
        if tools and "say:" not in last and "loop:" not in last:
            call = {"name": tools[0]["function"]["name"], "arguments": {"location": "Málaga"}}
            order = f"say:<think>hm</think>ok<tool_call>{json.dumps(call)}</tool_call>"
            messages.append({"role": "user", "content": order})
        return super().encode_chat(messages, tools, **variables)


def write_tagged(monkeypatch):
    """Have every model write as TaggedFormat reads."""
    monkeypatch.setattr("caudal.server.conversation.format_of", lambda *_: TaggedFormat())
