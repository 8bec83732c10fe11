"""A whole server with a tool_engine; MODEL.gguf lends its tokenizer: python serve_tool_engine.py MODEL.gguf."""

from __future__ import annotations

import logging
import sys

from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.server.launch import EngineSource, listen, run_server
from caudal.server.model_catalog import ModelCatalog
from caudal.server.residency import Residency
from caudal.server.settings import ServedModel, ServerSettings
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

CONTEXT = 200_000


def main():
    logging.basicConfig(level=logging.INFO)
    path = sys.argv[1]
    with open_checkpoint(path) as checkpoint:
        tokenizer = load_gguf_tokenizer(checkpoint.metadata, path=path)
    settings = ServerSettings(port=0)
    catalog = ModelCatalog(lambda: [ServedModel(name="local", path=path)])
    catalog.look_now()
    config = EngineConfig(model_path=path, max_model_len=CONTEXT)
    engines = EngineSource(config=config, factory="tool_engine:load", load_tokenizer=lambda *_given: tokenizer)
    with listen(settings) as listener:
        run_server(listener, settings, catalog, engines, Residency(), "local")


if __name__ == "__main__":
    main()
