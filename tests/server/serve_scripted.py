"""A whole server in a process of its own, with the scripted engine.

python serve_scripted.py PORT DRAIN_S [MODEL...]: the first is loaded at the start. A model's name is what
scripted_engine.load reads, but for "scripted", which has no other meaning.
SCRIPTED_KEEP_ALIVE_S, SCRIPTED_MAX_LOADED and SCRIPTED_LOAD_TIMEOUT_S stand for the flags.
SCRIPTED_SETTINGS is a JSON object of further fields of ServerSettings.
With SCRIPTED_MODELS_DIR the models are real files: MODEL.gguf beside that folder, and those in it, which clients may
change.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from byte_tokenizer import ByteTokenizer

from caudal.config import EngineConfig
from caudal.errors import CaudalError
from caudal.server.launch import EngineSource, ModelSources, check_exposure, listen, run_server
from caudal.server.model_catalog import ModelCatalog
from caudal.server.residency import Residency
from caudal.server.settings import ServedModel, ServerSettings


def main():
    port, drain_s, *names = sys.argv[1:]
    names = names or ["scripted"]
    more = json.loads(os.environ.get("SCRIPTED_SETTINGS", "{}"))
    quick = {"ping_interval_s": 0.1, "first_byte_wait_s": 0.3}
    settings = ServerSettings(**{"port": int(port), "drain_s": float(drain_s), **quick, **more})
    keep_alive_s = float(os.environ.get("SCRIPTED_KEEP_ALIVE_S", "300"))
    max_loaded = int(os.environ["SCRIPTED_MAX_LOADED"]) if "SCRIPTED_MAX_LOADED" in os.environ else None
    load_timeout_s = float(os.environ.get("SCRIPTED_LOAD_TIMEOUT_S", "60"))
    residency = Residency(keep_alive_s=keep_alive_s, max_loaded=max_loaded, load_timeout_s=load_timeout_s)
    catalog, library = ModelCatalog(lambda: [ServedModel(name=name, path=name) for name in names]), None
    if folder := os.environ.get("SCRIPTED_MODELS_DIR"):
        named = tuple((ServedModel(name=name), Path(folder).with_name(f"{name}.gguf")) for name in names)
        sources = ModelSources(named=named, folder=Path(folder), manages=True)
        catalog, library = sources.catalog(), sources.library()
    config = EngineConfig(model_path="scripted", max_model_len=100_000)
    engines = EngineSource(
        config=config, factory="scripted_engine:load", load_tokenizer=lambda *_given: ByteTokenizer()
    )
    try:
        check_exposure(settings)
        with listen(settings) as listener:
            catalog.look_now()
            run_server(listener, settings, catalog, engines, residency, names[0], library)
    except CaudalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
