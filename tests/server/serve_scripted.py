"""A whole server in a process of its own, with the scripted engine: python serve_scripted.py PORT DRAIN_S [MODEL].

SCRIPTED_SETTINGS is a JSON object of further fields of ServerSettings.
"""

from __future__ import annotations

import json
import os
import sys

from byte_tokenizer import ByteTokenizer

from caudal.config import EngineConfig
from caudal.errors import CaudalError
from caudal.server.launch import check_exposure, listen, run_server
from caudal.server.settings import ServedModel, ServerSettings


def main():
    port, drain_s, *rest = sys.argv[1:]
    more = json.loads(os.environ.get("SCRIPTED_SETTINGS", "{}"))
    settings = ServerSettings(**{"port": int(port), "drain_s": float(drain_s), **more})
    config = EngineConfig(model_path=rest[0] if rest else "scripted", max_model_len=100_000)
    try:
        check_exposure(settings)
        with listen(settings) as listener:
            run_server(
                listener, config, ByteTokenizer(), settings, ServedModel(name="scripted"), "scripted_engine:load"
            )
    except CaudalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
