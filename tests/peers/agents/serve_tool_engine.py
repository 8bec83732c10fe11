"""A whole server with a tool_engine; MODEL.gguf lends its tokenizer: python serve_tool_engine.py MODEL.gguf."""

from __future__ import annotations

import logging
import sys

from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.server.launch import listen, run_server
from caudal.server.settings import ServedModel, ServerSettings
from caudal.tokenizer.from_gguf import load_tokenizer

CONTEXT = 200_000


def main():
    logging.basicConfig(level=logging.INFO)
    path = sys.argv[1]
    with open_checkpoint(path) as checkpoint:
        tokenizer = load_tokenizer(checkpoint.metadata, path=path)
    settings = ServerSettings(port=0)
    config = EngineConfig(model_path=path, max_model_len=CONTEXT)
    with listen(settings) as listener:
        run_server(listener, config, tokenizer, settings, ServedModel(name="local"), "tool_engine:load")


if __name__ == "__main__":
    main()
