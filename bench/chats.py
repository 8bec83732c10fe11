"""The chats of load.py: made up of the texts in bench/data, the same for every server."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from machine import ROOT

if TYPE_CHECKING:
    from caudal.tokenizer.tokenizer import Tokenizer

SYSTEM_TOKENS = 200
PROMPT_TOKENS = (50, 1500)
ANSWER_TOKENS = (100, 300)
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True)
class Chat:
    """One request.

    Attributes:
        body: of the HTTP request.
        num_prompt_tokens: tokens of the user's message.
    """

    body: dict[str, Any]
    num_prompt_tokens: int


class ChatMaker:
    """Makes chats of one model. All share a system prompt; lengths are spread evenly over their logarithms."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        files = ("english.txt", "quijote.txt", "several.txt")
        self._words = " ".join((ROOT / "bench" / "data" / name).read_text() for name in files).split()
        self.system = "You are a helpful assistant. " + self._text(random.Random(seed), SYSTEM_TOKENS)  # noqa: S311

    def _text(self, source: random.Random, num_tokens: int) -> str:
        """Words of the texts, from a random place on and around, until there are `num_tokens` tokens of them."""
        start = source.randrange(len(self._words))
        words = [self._words[(start + 7 * i) % len(self._words)] for i in range(num_tokens)]
        ids = self._tokenizer.encode(" ".join(words), add_special_tokens=False)[:num_tokens]
        return self._tokenizer.decode(ids)

    def chat(self, user: int, turn: int) -> Chat:
        """Return what a user asks in a turn."""
        source = random.Random(f"{self._seed} {user} {turn}")  # noqa: S311 - any prompts will do, if always the same
        low, high = PROMPT_TOKENS
        num_tokens = round(math.exp(source.uniform(math.log(low), math.log(high))))
        return self._chat(source, num_tokens, source.randint(*ANSWER_TOKENS))

    def chat_of(self, user: int, num_prompt_tokens: int, num_answer_tokens: int) -> Chat:
        """Return a chat of given lengths."""
        source = random.Random(f"{self._seed} {user} of {num_prompt_tokens}")  # noqa: S311 - as above
        return self._chat(source, num_prompt_tokens, num_answer_tokens)

    def _chat(self, source: random.Random, num_prompt_tokens: int, num_answer_tokens: int) -> Chat:
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"({source.random()}) {self._text(source, num_prompt_tokens)}"},
        ]
        body = {
            "messages": messages,
            "max_tokens": num_answer_tokens,
            "seed": source.randrange(1 << 31),
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **SAMPLING,
        }
        return Chat(body, num_prompt_tokens)
