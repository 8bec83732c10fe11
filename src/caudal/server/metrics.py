"""Prometheus metrics under vLLM's names, so that existing dashboards work. One registry per app.

Token and latency figures are measured here, at the API, and survive a restart of the engine. Gauges and cache
counters are the engine's latest stats; their counters begin again when the engine does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from caudal.messages import FINISH_REASONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from caudal.engine.engine_client import Engines
    from caudal.messages import EngineStats
    from caudal.server.answer_reader import Piece

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
_REQUEST_S = (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
_LABEL = "model_name"


class _EngineCollector(Collector):
    """Reads the engines' stats when somebody scrapes."""

    def __init__(self) -> None:
        self.clients: dict[str, Engines] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges and counters of every engine."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for model_name, client in self.clients.items():
            for kind, name, text, value in _figures(client.stats):
                family = families.setdefault(name, kind(name, text, labels=[_LABEL]))
                family.add_metric([model_name], value)
            self._add_cache_info(model_name, client, families)
        yield from families.values()

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
        family = families.setdefault(name, GaugeMetricFamily(name, text, labels=[_LABEL, *info]))
        family.add_metric([model_name, *info.values()], 1)


def _figures(stats: EngineStats) -> Iterator[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, float]]:
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
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily, name, text, value
    for name, text, value in counters:
        yield CounterMetricFamily, name, text, value


class ServerMetrics:
    """The metrics of one app: families with the model's name as label."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._engines = _EngineCollector()
        self._registry.register(self._engines)
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of answered requests.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Generated tokens.")
        self.first_token_s = self._histogram(
            "vllm:time_to_first_token_seconds", "Until the first token.", _FIRST_TOKEN_S
        )
        self.token_s = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens.", _TOKEN_S)
        self.output_token_s = self._histogram(
            "vllm:time_per_output_token_seconds", "Between two tokens, under the older name.", _TOKEN_S
        )
        self.request_token_s = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time between two tokens of a request.", _TOKEN_S
        )
        self.request_s = self._histogram("vllm:e2e_request_latency_seconds", "Until the last token.", _REQUEST_S)
        self.request_prompt_tokens = self._histogram("vllm:request_prompt_tokens", "Prompt length.", _TOKENS)
        self.request_generation_tokens = self._histogram("vllm:request_generation_tokens", "Answer length.", _TOKENS)
        self.ends = Counter(
            "vllm:request_success", "Requests by how they ended.", [_LABEL, "finished_reason"], registry=self._registry
        )

    def watch(self, model_name: str, client: Engines) -> ModelMetrics:
        """Report an engine's stats from now on, in place of another one's of that name, and count its answers."""
        self._engines.clients[model_name] = client
        return ModelMetrics(self, model_name)

    def forget(self, model_name: str) -> None:
        """Report that engine's stats no longer."""
        self._engines.clients.pop(model_name, None)

    def watch_open(self, count: Callable[[], int]) -> None:
        """Report from now on how many answers are open."""
        text = "Answers being made or waited for, as the server counts them."
        Gauge("caudal:open_requests", text, registry=self._registry).set_function(count)

    def exposition(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, [_LABEL], registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, [_LABEL], registry=self._registry, buckets=buckets)


class ModelMetrics:
    """The metrics of one model."""

    def __init__(self, families: ServerMetrics, model_name: str) -> None:
        self.prompt_tokens = families.prompt_tokens.labels(model_name)
        self.generation_tokens = families.generation_tokens.labels(model_name)
        self.first_token_s = families.first_token_s.labels(model_name)
        self.token_s = families.token_s.labels(model_name)
        self.output_token_s = families.output_token_s.labels(model_name)
        self.request_token_s = families.request_token_s.labels(model_name)
        self.request_s = families.request_s.labels(model_name)
        self.request_prompt_tokens = families.request_prompt_tokens.labels(model_name)
        self.request_generation_tokens = families.request_generation_tokens.labels(model_name)
        self._ends = {reason: families.ends.labels(model_name, reason) for reason in FINISH_REASONS}

    def finished(self, reason: str) -> None:
        """Count the end of a request."""
        self._ends[reason].inc()

    def timer(self, num_prompt_tokens: int) -> AnswerTimer:
        """Return the clock of an answer that begins now."""
        return AnswerTimer(self, num_prompt_tokens)


class AnswerTimer:
    """Measures one answer and reports it when it ends, once."""

    def __init__(self, metrics: ModelMetrics, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self._begun_s = time.monotonic()
        self._first_s = self._begun_s
        self._last_s = self._begun_s
        self._ended = False

    def note(self, piece: Piece) -> None:
        """Take a piece of the answer into account."""
        if piece.num_tokens:
            self._note_tokens(piece.num_tokens)
        if piece.finish_reason is not None:
            self.end(piece.finish_reason)

    def end(self, reason: str) -> None:
        """Report the answer, unless that has been done."""
        if self._ended:
            return
        self._ended = True
        metrics = self._metrics
        metrics.finished(reason)
        if reason not in ("stop", "length"):
            return
        metrics.request_s.observe(time.monotonic() - self._begun_s)
        metrics.request_prompt_tokens.observe(self._num_prompt_tokens)
        metrics.request_generation_tokens.observe(self._num_tokens)
        if self._num_tokens > 1:
            metrics.request_token_s.observe((self._last_s - self._first_s) / (self._num_tokens - 1))

    def _note_tokens(self, num_tokens: int) -> None:
        now_s = time.monotonic()
        metrics = self._metrics
        if self._num_tokens == 0:
            self._first_s = now_s
            metrics.prompt_tokens.inc(self._num_prompt_tokens)
            metrics.first_token_s.observe(now_s - self._begun_s)
        else:
            for _ in range(num_tokens):
                metrics.token_s.observe((now_s - self._last_s) / num_tokens)
                metrics.output_token_s.observe((now_s - self._last_s) / num_tokens)
        metrics.generation_tokens.inc(num_tokens)
        self._num_tokens += num_tokens
        self._last_s = now_s
