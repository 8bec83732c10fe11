"""An app for tests of the APIs that local clients speak: its model has a template, tokens for gaps, and facts."""

from __future__ import annotations

import importlib.util
import json
from contextlib import asynccontextmanager
from types import MappingProxyType

import httpx
from byte_tokenizer import ByteTokenizer
from conftest import make_config
from scripted_engine import ScriptedEngine

from caudal.engine.local_client import LocalEngineClient
from caudal.server.app import app_of
from caudal.server.context import ServerContext
from caudal.server.metrics import ServerMetrics
from caudal.server.model_directory import OneModel
from caudal.server.model_facts import ModelFacts
from caudal.server.settings import ServedModel, ServerSettings
from caudal.tokenizer.fim_tokens import FimTokens

HONOURS_RULES = importlib.util.find_spec("caudal.server.output_rules") is not None
"""Whether answers can be made to look like something: the formats of both APIs are refused otherwise."""

PRE, SUF, MID, REP, SEP = range(260, 265)
FACTS = ModelFacts(
    file_name="scripted-Q4_K_M.gguf",
    architecture="llama",
    num_parameters=1_543_000_000,
    quantization="Q4_K_M",
    size_bytes=986_000_000,
    modified_ns=1_700_000_000_250_000_000,
    digest="ab" * 32,
    context_length=32768,
    hidden_size=1536,
    vocab_size=265,
    chat_template="{{ tools }} enable_thinking",
    fills_in_the_middle=True,
    metadata=MappingProxyType({"llama.context_length": 32768, "general.license": "apache-2.0", "x.y": 1.5}),
)
MODEL = ServedModel(name="org/Scripted:Q4", aliases=("scripted",), created=1, facts=FACTS)


class TemplateTokenizer(ByteTokenizer):
    """Shows the template's variables at the beginning of the prompt."""

    vocab_size = 265
    chat_template_source = "{{ tools }} enable_thinking"
    fim_tokens = FimTokens(prefix=PRE, suffix=SUF, middle=MID, repository=REP, separator=SEP)

    def render_chat(self, messages, tools=None, **variables):
        shown = {key: variables[key] for key in ("enable_thinking", "reasoning_effort") if key in variables}
        history = [m for m in messages if m.get("tool_calls") or m["role"] == "tool" or m.get("reasoning_content")]
        head = "".join(f"[{name}={value}]" for name, value in shown.items())
        head += f"[history={json.dumps(history)}]" if history else ""
        return head + super().render_chat(messages, tools, **variables)


class BaseTokenizer(ByteTokenizer):
    """Of a base model: no template, no tokens for gaps."""


@asynccontextmanager
async def peer_app(tokenizer=None, *, model=MODEL, settings=None, **config):
    """An httpx client of an app, without sockets; its engine is http.engine."""
    engine = ScriptedEngine(make_config(**config))
    client = LocalEngineClient(engine)
    await client.start()
    metrics = ServerMetrics()
    models = OneModel(client, tokenizer or TemplateTokenizer(), model, metrics)
    context = ServerContext(models, settings or ServerSettings(), metrics)
    transport = httpx.ASGITransport(app=app_of(context))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            http.engine, http.engine_client, http.context = engine, client, context
            yield http
    finally:
        await client.close()


def prompt_text(http):
    """What the engine last read, control tokens as <|id|>."""
    ids = http.engine.seen[-1]
    return b"".join(bytes([i]) if i < 256 else f"<|{i}|>".encode() for i in ids).decode()
