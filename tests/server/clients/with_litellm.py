"""LiteLLM against a server: python with_litellm.py URL. Writes what it got as JSON."""

import json
import sys

import litellm

URL = sys.argv[1]


def say(text):
    return [{"role": "user", "content": f"say:{text}"}]


def ask(model, text, **fields):
    return litellm.completion(
        model=model, messages=say(text), api_base=f"{URL}/v1", api_key="any", num_retries=0, **fields
    )


found = {}
for name in ("openai/scripted", "hosted_vllm/scripted"):
    answer = ask(name, "añ 🎉")
    found[name] = [answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage.completion_tokens]
    chunks = list(ask(name, "añ 🎉", stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    found[f"{name} stream"] = [text, litellm.stream_chunk_builder(chunks).usage.completion_tokens]
answer = litellm.text_completion(
    model="text-completion-openai/scripted", prompt="say:abc", api_base=f"{URL}/v1", api_key="any", max_tokens=10
)
found["text"] = answer.choices[0].text
try:
    ask("openai/scripted", "x" * 200_000)
except litellm.ContextWindowExceededError:
    found["too long"] = True
try:
    ask("openai/unknown", "x")
except litellm.NotFoundError:
    found["unknown"] = True
print(json.dumps(found))
