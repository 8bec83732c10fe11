#!/usr/bin/env python3
"""llama-server's command line in front of `caudal serve`, so that llama.cpp's own server tests can start Caudal.

What changes an answer is mapped to Caudal's option for it; what has no counterpart is named on stderr and left out.
Models are not fetched: whatever is asked for, a local file takes its place.

    LLAMA_SHIM_PYTHON     the Python that has Caudal; this one by default
    LLAMA_SHIM_CHAT, LLAMA_SHIM_EMBEDDING, LLAMA_SHIM_RERANKER    the files
    LLAMA_SHIM_DRY_RUN    print Caudal's command line as JSON and leave
"""

from __future__ import annotations

import json
import os
import sys

START = "from caudal.cli.main import main; main()"

# How many values a flag takes. A flag that is not here is passed over together with the values that follow it.
SWITCHES = {
    "--offline", "--cont-batching", "--embedding", "--embeddings", "--reranking", "--rerank", "--metrics", "--slots",
    "--no-slots", "--kv-unified", "--swa-full", "--verbose", "--context-shift", "--no-ui", "--no-webui", "--jinja",
    "--no-jinja", "--no-mmproj", "--no-models-autoload", "--no-cache-idle-slots", "--ui-mcp-proxy",
    "--backend_sampling", "--log-disable", "--props",
}  # fmt: skip
SHORT = {
    "-m": "--model", "-c": "--ctx-size", "-np": "--parallel", "-n": "--n-predict", "-b": "--batch-size", "-s": "--seed",
    "-t": "--threads", "-a": "--alias", "-hf": "--hf-repo", "-hff": "--hf-file", "-mu": "--model-url",
    "-ub": "--ubatch-size", "-ngl": "--n-gpu-layers", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v",
    "-fa": "--flash-attn", "-md": "--model-draft", "-kvu": "--kv-unified", "-cb": "--cont-batching",
}  # fmt: skip
# Flags that say how llama-server works inside, or switch on what Caudal always does: nothing is lost.
NO_MATTER = {
    "--offline", "--cont-batching", "--ubatch-size", "--n-gpu-layers", "--flash-attn", "--swa-full", "--jinja",
    "--slots", "--metrics", "--no-ui", "--no-webui", "--no-mmproj", "--log-disable", "--cache-ram",
    "--no-cache-idle-slots", "--hf-repo", "--hf-file", "--model", "--model-url", "--verbose", "--temp",
}  # fmt: skip
# llama-server with one model answers to any name; Caudal has to be told those that the tests use.
ANY_NAME = (
    "test", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1", "davinci-002", "text-embedding-3-small",
    "codellama70b",
)  # fmt: skip
KV_TYPES = {"f16": "f16", "q8_0": "int8"}


def parse(arguments):
    """Return the flags with their values (True for a switch), the last of each, and what is not known."""
    given, unknown, index = {}, [], 0
    while index < len(arguments):
        flag = SHORT.get(arguments[index], arguments[index])
        index += 1
        if flag in SWITCHES:
            given[flag] = True
        elif flag.startswith("-") and index < len(arguments):
            given[flag] = arguments[index]
            index += 1
        else:
            unknown.append(flag)
    return given, unknown


def model_for(given, environment):
    """Return the file that stands for the model asked for."""
    if "--embedding" in given or "--embeddings" in given:
        return environment["LLAMA_SHIM_EMBEDDING"]
    if "--reranking" in given or "--rerank" in given:
        return environment["LLAMA_SHIM_RERANKER"]
    return environment["LLAMA_SHIM_CHAT"]


def template_options(given):
    """Take the chat template out of the flags; one that llama.cpp has built in stays, to be told of."""
    if "--chat-template-file" in given:
        return ["--chat-template-file", given.pop("--chat-template-file")]
    if " " in given.get("--chat-template", ""):
        return ["--chat-template", given.pop("--chat-template")]
    return []


def python_of(environment):
    """Return the Python that has Caudal."""
    return environment.get("LLAMA_SHIM_PYTHON", sys.executable)


def lengths(given):
    """Return the options for context and batch: llama-server divides its context between slots, unless unified."""
    slots = max(1, int(given.pop("--parallel", 4)))
    context = int(given.pop("--ctx-size", 0))
    unified = given.pop("--kv-unified", False)
    options = ["--max-num-seqs", str(slots)]
    if context > 0:
        options += ["--max-model-len", str(context if unified else context // slots)]
    if batch := int(given.pop("--batch-size", 0)):
        options += ["--max-num-batched-tokens", str(max(batch, slots))]
    return options


def translate(arguments, environment):
    """Return the arguments of `caudal serve`, and sentences about what was left out."""
    given, unknown = parse(arguments)
    options = [model_for(given, environment), *template_options(given), *lengths(given)]
    host = given.pop("--host", "127.0.0.1").split(",")[0]
    options += ["--host", host, "--port", given.pop("--port", "8080")]
    keys = [key for key in given.pop("--api-key", "").split(",") if key]
    options += [word for key in keys for word in ("--api-key", key)]
    if host not in ("127.0.0.1", "localhost", "::1") and not keys:
        options.append("--insecure-no-key")
    aliases = sorted({name.strip() for name in given.pop("--alias", "model").split(",") if name.strip()})
    options += [word for name in (*aliases, *ANY_NAME) for word in ("--served-model-name", name)]
    origins = [origin for origin in given.pop("--cors-origins", "").split(",") if origin]
    options += [word for origin in origins if origin != "localhost" for word in ("--allowed-origin", origin)]
    for flag, ours in (("--threads", "--threads"), ("--spec-draft-n-max", "--num-speculative-tokens")):
        if flag in given:
            options += [ours, given.pop(flag)]
    if given.get("--pooling") in ("cls", "mean", "last"):
        options += ["--pooling", given.pop("--pooling")]
    kinds = {given.pop(flag, None) for flag in ("--cache-type-k", "--cache-type-v")} - {None}
    if len(kinds) == 1 and (kind := KV_TYPES.get(kinds.pop())):
        options += ["--kv-cache-dtype", kind]
    if given.get("--verbose"):
        options.append("--verbose")
    left_out = [f"{flag} {'' if value is True else value}".strip() for flag, value in given.items() if flag not in NO_MATTER]  # fmt: skip # noqa: E501
    return options, [*left_out, *unknown]


def main():
    """Become `caudal serve`."""
    environment = dict(os.environ)
    options, left_out = translate(sys.argv[1:], environment)
    for flag in left_out:
        sys.stderr.write(f"llama_server_shim: Caudal has nothing for {flag}; left out\n")
    if environment.get("LLAMA_SHIM_DRY_RUN"):
        sys.stdout.write(json.dumps(options) + "\n")
        return
    sys.stderr.flush()
    python = python_of(environment)
    os.execve(python, [python, "-c", START, "serve", *options], environment)


if __name__ == "__main__":
    main()
