"""Run llama.cpp's own server tests against Caudal.

    python tests/peers/run_llama_cpp_tests.py /path/to/llama.cpp/tools/server/tests [pytest's arguments]

The folder is a checkout's; none of its files are ours. They run under the Python named by --python, which needs what
the folder's requirements.txt asks for; Caudal runs under this one. llama_cpp_tests.toml lists the tests that are left
out and why; --listed runs those instead, to see which of them could leave the list.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tiny_encoders import write_encoders

HERE = Path(__file__).resolve().parent
SRC = HERE.parents[1] / "src"
CHAT_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def free_port():
    """Return a port of 127.0.0.1 that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def environment(options, folder, made):
    """Return the environment of pytest, which starts the shim."""
    models = Path(os.environ.get("CAUDAL_TEST_MODELS") or Path.home() / ".cache" / "caudal-test-models")
    chat = Path(options.model or models / CHAT_MODEL)
    if not chat.exists():
        sys.exit(f"no {chat}: say make models, or name a GGUF file with --model")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SRC), str(HERE)]),
        "LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server_shim.py"),
        "LLAMA_SHIM_PYTHON": sys.executable,
        "LLAMA_SHIM_CHAT": str(chat),
        "LLAMA_SHIM_EMBEDDING": str(options.embedding_model or made / "embedding.gguf"),
        "LLAMA_SHIM_RERANKER": str(options.reranker or made / "reranker.gguf"),
        "PORT": os.environ.get("PORT") or str(free_port()),
        "PEER_LIST": str(HERE / "llama_cpp_tests.toml"),
        "PEER_SELECT": "listed" if options.listed else "",
        "LLAMA_CACHE": str(folder / "tmp"),
    }


def main():
    """Run pytest in the folder; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout's tools/server/tests")
    parser.add_argument("--python", default=sys.executable, help="a Python that has the folder's requirements")
    parser.add_argument("--model", help="a GGUF file that chats; SmolLM2 by default")
    parser.add_argument("--embedding-model", type=Path, help="a GGUF file that embeds; a tiny one by default")
    parser.add_argument("--reranker", type=Path, help="a GGUF file that ranks; a tiny one by default")
    parser.add_argument("--listed", action="store_true", help="run only the tests on the list")
    options, arguments = parser.parse_known_args()
    folder = options.folder.resolve()
    if not (folder / "utils.py").exists():
        sys.exit(f"{folder} has no utils.py: expected the folder tools/server/tests of a llama.cpp checkout")
    python = Path.cwd() / options.python  # the tests run in their own folder; a link of a virtual environment stays one
    command = [str(python), "-m", "pytest", "-p", "peer_selection", "-m", "not slow", "-q", "-rf", *arguments]
    with tempfile.TemporaryDirectory() as made:
        write_encoders(Path(made))
        variables = environment(options, folder, Path(made))
        return subprocess.run(command, cwd=folder, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
