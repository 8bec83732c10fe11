"""A model in memory: its engine's process and its tokenizer, started together and stopped together."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from caudal.engine.engine_client import STALL_S, EngineClient
from caudal.server.loaded_model import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from caudal.config import EngineConfig
    from caudal.server.metrics import ServerMetrics
    from caudal.server.settings import ServedModel
    from caudal.server.tokenizer_port import ServedTokenizer

    LoadTokenizer = Callable[[str, str | None], ServedTokenizer]

ONE_CHAT_TOKENS = 8192
PROCESS_BYTES = 150 << 20


def needed_bytes(info: ServedModel, config: EngineConfig) -> int:
    """Return what loading a model takes at least: its weights, the KV cache of one conversation, and the process.

    The cache grows beyond that with use, as far as its plan allows; see caudal.engine.kv_plan.
    """
    tokens = min(config.max_model_len or info.context_length or ONE_CHAT_TOKENS, ONE_CHAT_TOKENS)
    cache = tokens * info.kv_bytes_per_token
    if config.kv_cache_bytes is not None:
        cache = min(cache, config.kv_cache_bytes)
    return info.size_bytes + cache + PROCESS_BYTES


def held_bytes(process_id: int, proc: Path = Path("/proc")) -> int:
    """Return the memory that becomes free when a process ends; 0 if the system does not tell.

    Source: proc(5) `/proc/pid/status`, RssAnon and RssShmem: mapped files are no part of it.
    """
    try:
        lines = (proc / str(process_id) / "status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is known of the machine's memory.

    Attributes:
        free_bytes: says how much is free.
        held_bytes: says what becomes free when the process with this id ends.
    """

    free_bytes: Callable[[], int]
    held_bytes: Callable[[int], int] = held_bytes


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A model that answers, until stop()."""

    client: EngineClient
    model: LoadedModel
    _tokenizing: ThreadPoolExecutor
    _metrics: ServerMetrics

    async def stop(self) -> None:
        """End the process. Open requests fail with EngineUnavailable."""
        self._metrics.forget(self.model.name)
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        await self.client.close()


@dataclass(frozen=True, kw_only=True)
class ModelStarter:
    """Knows how to bring a model into memory.

    Attributes:
        config: of every engine, but for the path of its model.
        load_tokenizer: makes a tokenizer of a model file, with another chat template if it is given one; it may block.
        engine_factory: as EngineClient takes it.
        metrics: where requests are counted.
        stall_s: as EngineClient takes it.
    """

    config: EngineConfig
    load_tokenizer: LoadTokenizer
    engine_factory: str
    metrics: ServerMetrics
    stall_s: float = STALL_S

    async def start(self, info: ServedModel) -> RunningModel:
        """Start a model's process and load its tokenizer beside it; if either fails, or is cancelled, leave nothing.

        Raises:
            CheckpointError, ConfigError, CaudalError: what the engine said, or why there is no tokenizer.
        """
        config = msgspec.structs.replace(self.config, model_path=info.path)
        client = EngineClient(config, engine_factory=self.engine_factory, stall_s=self.stall_s)
        tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")
        loop = asyncio.get_running_loop()
        starting = asyncio.create_task(client.start())
        try:
            tokenizer = await loop.run_in_executor(tokenizing, self.load_tokenizer, info.path, info.chat_template)
            await starting
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            tokenizing.shutdown(wait=False, cancel_futures=True)
            await client.close()
            raise
        watched = self.metrics.watch(info.name, client)
        model = LoadedModel(client, tokenizer, info, metrics=watched, tokenizing=tokenizing)
        return RunningModel(client, model, tokenizing, self.metrics)
