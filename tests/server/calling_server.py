"""A server over real sockets whose model thinks and calls tools: what official clients are tried against."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from conftest import make_config, real_server
from scripted_engine import ScriptedEngine
from tagged_format import CallingTokenizer, write_tagged

from caudal.engine.local_client import LocalEngineClient
from caudal.server.settings import ServedModel

MODEL = ServedModel(name="scripted", aliases=("claude-sonnet-4-local", "gpt-5-local"), created=1)


@contextmanager
def calling_server():
    """Yield the base URL."""
    with pytest.MonkeyPatch.context() as patch:
        write_tagged(patch)
        config = make_config(max_model_len=8192)
        with real_server(
            lambda: LocalEngineClient(ScriptedEngine(config)), tokenizer=CallingTokenizer(), model=MODEL
        ) as (url, _):
            yield url
