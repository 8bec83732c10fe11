"""The engines' own figures for Prometheus: their latest stats, read when somebody scrapes. vLLM's names.

Counters begin again when an engine does, which Prometheus' rate() understands.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from caudal.messages import STEP_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from caudal.engine.engine_client import Engines
    from caudal.messages import EngineStats

LABEL = "model_name"


class EngineCollector(Collector):
    """Reads the engines' stats when somebody scrapes.

    Attributes:
        clients: the engines by the names of their models.
    """

    def __init__(self) -> None:
        self.clients: dict[str, Engines] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges and counters of every engine."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for model_name, client in self.clients.items():
            for kind, name, text, value in _figures(client.stats, client.num_restarts):
                family = families.setdefault(name, kind(name, text, labels=[LABEL]))
                family.add_metric([model_name], value)
            self._add_cache_info(model_name, client, families)
        yield from families.values()
        yield self._step_tokens()
        loaded = sum(client.ready is not None for client in self.clients.values())
        yield GaugeMetricFamily("caudal:models_loaded", "Models that are in memory and answer.", value=loaded)

    def _step_tokens(self) -> HistogramMetricFamily:
        text = "Tokens computed in a step."
        family = HistogramMetricFamily("vllm:iteration_tokens_total", text, labels=[LABEL])
        for model_name, client in self.clients.items():
            *counts, total = client.stats.step_tokens or [0] * (len(STEP_TOKENS) + 2)
            bounds = [*map(floatToGoString, STEP_TOKENS), "+Inf"]
            family.add_metric([model_name], list(zip(bounds, accumulate(counts), strict=True)), total)
        return family

    def _add_cache_info(
        self, model_name: str, client: Engines, families: dict[str, GaugeMetricFamily | CounterMetricFamily]
    ) -> None:
        ready = client.ready
        if ready is None:
            return
        info = {
            "cache_dtype": ready.kv_dtype,
            "bytes_per_token": str(ready.kv_bytes_per_token),
            "num_blocks": str(ready.num_kv_blocks),
        }
        name, text = "vllm:cache_config_info", "What the KV cache is made of; always 1."
        family = families.setdefault(name, GaugeMetricFamily(name, text, labels=[LABEL, *info]))
        family.add_metric([model_name, *info.values()], 1)


def _figures(
    stats: EngineStats, num_restarts: int
) -> Iterator[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, float]]:
    usage = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
    gauges = (
        ("vllm:num_requests_running", "Requests in the engine's batch.", stats.num_running),
        ("vllm:num_requests_waiting", "Requests that wait for room in the batch.", stats.num_waiting),
        ("vllm:kv_cache_usage_perc", "Used part of the KV cache; 1 is full.", usage),
        ("caudal:kv_cache_allocated_tokens", "Tokens that the used KV blocks can hold.", stats.kv_slots_allocated),
        ("caudal:kv_cache_used_tokens", "Tokens that the used KV blocks do hold.", stats.kv_slots_used),
    )
    counters = (
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits),
        ("vllm:num_preemptions", "Requests that gave their KV blocks to others.", stats.num_preemptions),
        ("vllm:spec_decode_num_drafts", "Guesses at how an answer goes on.", stats.num_drafts),
        ("vllm:spec_decode_num_draft_tokens", "Tokens guessed.", stats.num_draft_tokens),
        ("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right.", stats.num_accepted_tokens),
        ("caudal:engine_steps", "Steps that the engine computed.", stats.num_steps),
        ("caudal:engine_restarts", "Times that the engine was started again after it had died.", num_restarts),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily, name, text, value
    for name, text, value in counters:
        yield CounterMetricFamily, name, text, value
