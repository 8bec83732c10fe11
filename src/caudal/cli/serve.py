"""`caudal serve MODEL`: the OpenAI API over HTTP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from caudal.cli.options import ModelFirst, chain, engine_options, model_option, option, speculation_option
from caudal.cli.process_log import LOG_FORMATTERS, start_logging
from caudal.config import EngineConfig, check_environment
from caudal.errors import ConfigError
from caudal.hub.resolve import resolve
from caudal.server.settings import ACCESS_LOG_FORMATS, ServedModel, ServerSettings

# fmt: off
capacity_options = chain(
    option(EngineConfig, "max_num_seqs", "--max-num-seqs", "--parallel", type=int, help="Most sequences in one step."),
    option(EngineConfig, "max_num_batched_tokens", "--max-num-batched-tokens", type=int,
           help="Most tokens in one step."),
    option(EngineConfig, "prefill_per_decode", "--prefill-per-decode", type=float,
           help="Most work of a step on each prompt while others generate, as a multiple of theirs; 0 is no limit."),
    option(EngineConfig, "max_queue_len", "--max-queue-len", type=int,
           help="Most requests waiting; the next is refused with 429."),
    option(EngineConfig, "block_size", "--block-size", type=int, help="Tokens in a KV cache block: 16 or 32."),
    option(EngineConfig, "kv_cache_bytes", "--kv-cache-bytes", type=int, none="planned from free memory",
           help="Address space for the KV cache; memory is touched as it is used."),
    option(EngineConfig, "enable_prefix_caching", "--enable-prefix-caching/--no-enable-prefix-caching",
           help="Reuse the KV cache of a common beginning."),
)

listening_options = chain(
    click.option("--host", default=ServerSettings.host, show_default=True, help="Address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), default=ServerSettings.port, show_default=True,
                 help="Port to listen on; 0 takes a free one."),
    click.option("--api-key", "api_keys", multiple=True, metavar="KEY",
                 help="Key that clients must send. May be repeated."),
    click.option("--api-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 help="File with a key in each line: unlike --api-key, not visible in the list of processes."),
    click.option("--insecure-no-key", is_flag=True, help="Listen beyond this machine although there is no key."),
    click.option("--allowed-origin", "allowed_origins", multiple=True, metavar="ORIGIN",
                 help="Web origin whose pages may call the server; * is any. May be repeated."),
    click.option("--served-model-name", "names", multiple=True, metavar="NAME",
                 help="The model's name in the API. May be repeated: the first is listed.  [default: from MODEL]"),
)

watching_options = chain(
    click.option("--access-log", type=click.Choice(("auto", *ACCESS_LOG_FORMATS)), default="auto", show_default=True,
                 help="A line per request on stderr, without prompts and keys; auto is on with --verbose."),
    click.option("--log-format", type=click.Choice(tuple(LOG_FORMATTERS)), default="text", show_default=True,
                 help="How the log is written."),
    click.option("--metrics-per-key", is_flag=True, help="Count tokens and requests per key in /metrics."),
    click.option("--otlp-traces-endpoint", metavar="URL", default="",
                 help="Send an OpenTelemetry span per request there (OTLP over HTTP); needs caudal[otel]."),
)
# fmt: on


_SETTINGS = ("host", "port", "insecure_no_key", "allowed_origins", "metrics_per_key", "otlp_traces_endpoint")


def served_model(model: str, path: Path, names: tuple[str, ...]) -> ServedModel:
    """Name the model as asked, or as the user named it; a path stands for its file."""
    if names:
        return ServedModel(name=names[0], aliases=names[1:])
    return ServedModel(name=path.stem if Path(model).expanduser().exists() else model)


def read_keys(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    """Join the keys of the command line and of a file; empty lines do not count.

    Raises:
        ConfigError: keys were announced, and there is none: an unset variable must not open the server.
    """
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
    keys = tuple(key.strip() for key in (*given, *lines) if key.strip())
    if not keys and (given or file is not None):
        message = "the API key given is empty; set it, or leave --api-key and --api-key-file out"
        raise ConfigError(message)
    return keys


@click.command(cls=ModelFirst)
@click.argument("model")
@model_option
@listening_options
@engine_options
@speculation_option
@capacity_options
@watching_options
@click.option("--verbose", is_flag=True, help="Log every start and stop, not only what is wrong.")
def command(
    *,
    model: str,
    names: tuple[str, ...],
    api_keys: tuple[str, ...],
    api_key_file: Path | None,
    verbose: bool,
    access_log: str,
    log_format: str,
    **values: Any,
) -> None:
    """Serve MODEL over the OpenAI API, with continuous batching.

    Ctrl-C lets open requests finish; a second one leaves at once.
    """  # fmt: skip
    from caudal.server.launch import serve  # noqa: PLC0415 - a wrong flag is told before the server is imported

    start_logging(log_format, logging.INFO if verbose else logging.WARNING)
    check_environment()
    path = resolve(model)
    settings = ServerSettings(
        api_keys=read_keys(api_keys, api_key_file),
        access_log=(log_format if verbose else "off") if access_log == "auto" else access_log,
        **{name: values.pop(name) for name in _SETTINGS},
    )
    serve(EngineConfig(model_path=str(path), **values), settings, served_model(model, path, names))
