"""A tokenizer whose tokens are bytes, plus a few control tokens: every character outside ASCII is split."""

from __future__ import annotations

from caudal.errors import TemplateError
from caudal.tokenizer.detokenizer import Detokenizer

BOS, EOS = 256, 257


class ByteTokenizer:
    vocab_size = 260
    eos_token_ids = (EOS,)
    chat_template_source = ""
    bos_token_id, bos_token, eos_token = BOS, "<|256|>", "<|257|>"
    fim_tokens = None
    control_tokens = {"<|256|>": BOS, "<|257|>": EOS, "<|258|>": 258, "<|259|>": 259}  # noqa: RUF012 - never changed

    def encode(self, text, *, add_special_tokens=True, parse_special=False):  # noqa: ARG002 - bytes have no special text
        return [BOS] * add_special_tokens + list(text.encode())

    def encode_pair(self, query, document):
        return self.encode(query) + self.encode(document)[1:]

    def encode_chat(self, messages, tools=None, **variables):
        return self.encode(self.render_chat(messages, tools, **variables))

    def render_chat(self, messages, tools=None, *, add_generation_prompt=True, **variables):
        text = "".join(f"<tool>{tool['function']['name']}\n" for tool in tools or [])
        for message in messages:
            if "refuse-me" in message["content"]:
                error = "the template refuses this conversation"
                raise TemplateError(error)
            text += f"<{message['role']}>{message['content']}\n"
        if variables.get("continue_final_message"):
            text = text.removesuffix("\n")
        return text + "<assistant>" * add_generation_prompt

    def decode(self, token_ids, *, skip_special_tokens=True):
        detokenizer = self.detokenizer((), skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(self, prompt_token_ids, *, skip_special_tokens=True, shown=()):  # noqa: ARG002 - has no markers
        hidden = {BOS, EOS, 258, 259} if skip_special_tokens else set()
        return Detokenizer(
            {i: self.token_bytes(i) for i in range(self.vocab_size)}, hidden_ids=hidden, prompt_ids=prompt_token_ids
        )

    def token_bytes(self, token_id):
        return bytes([token_id]) if token_id < 256 else f"<|{token_id}|>".encode()
