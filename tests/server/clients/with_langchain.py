"""langchain-openai against a server: python with_langchain.py URL. Writes what it got as JSON."""

import json
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

URL = sys.argv[1]
CHAT = ChatOpenAI(model="scripted", base_url=f"{URL}/v1", api_key="any", max_retries=0, stream_usage=True)

answer = CHAT.invoke([SystemMessage("Be brief."), HumanMessage("hello"), AIMessage("yes?"), HumanMessage("say:añ 🎉")])
chunks = list(CHAT.stream("say:añ 🎉"))
total = chunks[0]
for chunk in chunks[1:]:
    total += chunk
found = {
    "text": answer.content,
    "usage": answer.usage_metadata["output_tokens"],
    "reason": answer.response_metadata["finish_reason"],
    "stream": total.content,
    "stream usage": total.usage_metadata["output_tokens"],
    "batch": [each.content for each in CHAT.batch(["say:a", "say:b"])],
    "stop": CHAT.invoke("say:one END two", stop=["END"]).content,
    "completion": OpenAI(model="scripted", base_url=f"{URL}/v1", api_key="any").invoke("say:abc"),
}
try:
    CHAT.invoke("x" * 200_000)
except openai.BadRequestError as error:
    found["too long"] = error.code
print(json.dumps(found))
