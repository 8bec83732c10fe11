"""`caudal serve MODEL...`: the OpenAI API over HTTP."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from caudal.cli.options import ModelFirst, chain, engine_options, model_option, option, speculation_option
from caudal.cli.process_log import LOG_FORMATTERS, start_logging
from caudal.cli.state_options import state_options, state_settings
from caudal.cli.template_option import template_option
from caudal.config import POOLINGS, EngineConfig, check_environment
from caudal.errors import ConfigError
from caudal.hub.resolve import plain_name, resolve
from caudal.server.model_catalog import read_aliases
from caudal.server.residency import Residency, read_keep_alive
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
    option(EngineConfig, "pooling", "--pooling", type=click.Choice(POOLINGS), none="what the model was made for",
           help="Make embeddings with the model; says which row stands for a text."),
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
                 help="The first model's name in the API. May be repeated: the others are aliases.  "
                 "[default: from MODEL]"),
    template_option("the first model's"),
)

several_options = chain(
    click.option("--models-dir", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
                 help="Serve every model in this folder too, each loaded when it is asked for."),
    click.option("--manage-models", "manages", is_flag=True,
                 help="Let clients pull, copy and delete models of --models-dir: those whose key has the scope "
                 "models:write, or anybody if there are no keys."),
    click.option("--alias", "aliases", multiple=True, metavar="NAME=MODEL",
                 help="Another name for a model. May be repeated."),
    click.option("--keep-alive", metavar="TIME",
                 help="Unload a model that nobody has used for so long: 5m, 1h30m, seconds; -1 is never, 0 at once.  "
                 "[default: 5m; never for the first MODEL]"),
    click.option("--max-loaded-models", "max_loaded", type=click.IntRange(min=1), metavar="N",
                 help="Most models in memory; the least recently used idle one leaves.  [default: as many as fit]"),
    click.option("--load-timeout", "load_timeout_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
                 default=Residency.load_timeout_s, show_default=True,
                 help="A request waits so long for its model, and is then told to come again."),
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
    return ServedModel(name=plain_name(path) if Path(model).expanduser().exists() else model)


def read_keys(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    """Join the keys of the command line and of a file; empty lines do not count.

    Raises:
        ConfigError: the file cannot be read as text, or keys were announced, and there is none: an unset variable must
            not open the server.
    """
    lines = _lines_of(file) if file is not None else []
    keys = tuple(key.strip() for key in (*given, *lines) if key.strip())
    if not keys and (given or file is not None):
        message = "the API key given is empty; set it, or leave --api-key and --api-key-file out"
        raise ConfigError(message)
    return keys


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        message = f"--api-key-file {file} is not UTF-8 text (byte {error.start}); expected a key in each line"
    except OSError as error:
        message = f"--api-key-file {file} cannot be read: {error.strerror or error}"
    raise ConfigError(message)


def named_models(
    models: tuple[str, ...], names: tuple[str, ...], chat_template: str | None = None
) -> tuple[tuple[ServedModel, Path], ...]:
    """Return the models of the command line and their files; `names` and `chat_template` are the first one's.

    Raises:
        ConfigError: two have the same name, or a name is for no model.
        ModelNotFound: one does not exist.
    """
    if names and not models:
        message = "--served-model-name names the first MODEL, and there is none; give one, or use --alias"
        raise ConfigError(message)
    if chat_template is not None and not models:
        message = "--chat-template is for the first MODEL, and there is none; give one"
        raise ConfigError(message)
    found: dict[str, tuple[ServedModel, Path]] = {}
    for number, model in enumerate(models):
        path = resolve(model)
        served = served_model(model, path, names if number == 0 else ())
        if number == 0:
            served = replace(served, chat_template=chat_template)
        other = found.setdefault(served.name, (served, path))[1]
        if other != path:
            message = f"{other} and {path} are both called {served.name!r}; rename one of the files"
            raise ConfigError(message)
    return tuple(found.values())


def read_residency(keep_alive: str | None, values: dict[str, Any]) -> Residency:
    """Return the rules from the values of `several_options`, taking them out of `values`."""
    rules = {name: values.pop(name) for name in ("max_loaded", "load_timeout_s")}
    if keep_alive is None:
        return Residency(**rules)
    seconds = read_keep_alive(keep_alive, "--keep-alive")
    return Residency(keep_alive_s=seconds, first_keep_alive_s=seconds, **rules)


@click.command(cls=ModelFirst)
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@model_option
@listening_options
@several_options
@engine_options
@speculation_option
@capacity_options
@state_options
@watching_options
@click.option("--verbose", is_flag=True, help="Log every start and stop, not only what is wrong.")
def command(
    *,
    models: tuple[str, ...],
    names: tuple[str, ...],
    api_keys: tuple[str, ...],
    api_key_file: Path | None,
    keep_alive: str | None,
    verbose: bool,
    access_log: str,
    log_format: str,
    **values: Any,
) -> None:
    """Serve models over the OpenAI API, with continuous batching.

    The first MODEL is loaded at once. Further ones, and those of --models-dir, are loaded when they are asked for, each
    in a process of its own, and unloaded when they are idle.

    Ctrl-C lets open requests finish; a second one leaves at once.
    """  # fmt: skip
    from caudal.server.launch import ModelSources, serve  # noqa: PLC0415 - a wrong flag is told before it is imported

    start_logging(log_format, logging.INFO if verbose else logging.WARNING)
    check_environment()
    folder, aliases, manages = values.pop("folder"), read_aliases(values.pop("aliases")), values.pop("manages")
    if not models and folder is None:
        message = "there is nothing to serve; give a MODEL, or --models-dir DIR"
        raise click.UsageError(message)
    residency = read_residency(keep_alive, values)
    named = named_models(models, names, values.pop("chat_template"))
    settings = ServerSettings(
        api_keys=read_keys(api_keys, api_key_file),
        **state_settings(values),
        access_log=(log_format if verbose else "off") if access_log == "auto" else access_log,
        **{name: values.pop(name) for name in _SETTINGS},
    )
    path = str(named[0][1]) if named else ""
    serve(
        EngineConfig(model_path=path, **values),
        settings,
        ModelSources(named=named, folder=folder, aliases=aliases, manages=manages),
        residency,
    )
