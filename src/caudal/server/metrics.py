"""Prometheus metrics under vLLM's names, so that existing dashboards work. One registry per app.

Token and latency figures are measured here, at the API, and survive a restart of the engine; how long a request
waited and how long its prompt took are the engine's word. See engine_metrics for the engines' gauges and counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from caudal import __version__
from caudal.messages import FINISH_REASONS
from caudal.server.answer_timer import AnswerTimer
from caudal.server.engine_metrics import LABEL, EngineCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caudal.engine.engine_client import Engines
    from caudal.server.answers import Answer
    from caudal.server.request_record import RequestRecord

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
_REQUEST_S = (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_WAIT_S = (0.001, 0.005, 0.02, *_REQUEST_S)
_HTTP_S = (0.005, 0.02, *_REQUEST_S[:12])
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
_ANSWERS = (1, 2, 5, 10, 20)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_KEYS = 100
OTHER_KEYS = "other"
_REFUSED = (429, 503)


class ServerMetrics:
    """The metrics of one app: families with the model's name as label.

    Args:
        per_key: count tokens and requests per key as well, for the first MAX_KEYS keys; the others are added up.
    """

    def __init__(self, *, per_key: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._engines = EngineCollector()
        self._registry.register(self._engines)
        self._add_answers()
        self._add_requests()
        self.keys = _KeyMetrics(self._registry) if per_key else None
        build = Gauge("caudal:build_info", "The version that runs; always 1.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)

    def _add_answers(self) -> None:
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of answered requests.")
        self.cached_tokens = self._counter("vllm:prompt_tokens_cached", "Of them, those found in the prefix cache.")
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
        self.queue_s = self._histogram("vllm:request_queue_time_seconds", "Until first scheduled.", _WAIT_S)
        self.prefill_s = self._histogram(
            "vllm:request_prefill_time_seconds", "From there to the first token.", _REQUEST_S
        )
        self.decode_s = self._histogram("vllm:request_decode_time_seconds", "From there to the last token.", _REQUEST_S)
        self.inference_s = self._histogram(
            "vllm:request_inference_time_seconds", "From first scheduled to the last token.", _REQUEST_S
        )
        self.request_prompt_tokens = self._histogram("vllm:request_prompt_tokens", "Prompt length.", _TOKENS)
        self.request_generation_tokens = self._histogram("vllm:request_generation_tokens", "Answer length.", _TOKENS)
        self._longest_answer = self._histogram(
            "vllm:request_max_num_generation_tokens", "The longest of a request's answers.", _TOKENS
        )
        self.params_n = self._histogram("vllm:request_params_n", "Answers asked for in a request.", _ANSWERS)
        self.params_max_tokens = self._histogram(
            "vllm:request_params_max_tokens", "Longest answer allowed, as asked for or as the context leaves.", _TOKENS
        )
        self.ends = Counter(
            "vllm:request_success", "Requests by how they ended.", [LABEL, "finished_reason"], registry=self._registry
        )

    def _add_requests(self) -> None:
        registry = self._registry
        route = ["method", "handler"]
        self._http = Counter(
            "http_requests", "HTTP requests that were answered.", [*route, "status"], registry=registry
        )
        self._http_s = Histogram(
            "http_request_duration_seconds", "Until the last byte.", route, registry=registry, buckets=_HTTP_S
        )
        self._rejections = Counter(
            "vllm:admission_rejections", "Requests that were refused for now.", [LABEL, "reason"], registry=registry
        )

    def watch(self, model_name: str, client: Engines) -> ModelMetrics:
        """Report an engine's stats from now on, in place of another one's of that name, and count its answers."""
        self._engines.clients[model_name] = client
        return ModelMetrics(self, model_name)

    def forget(self, model_name: str) -> None:
        """Report that engine's stats no longer."""
        self._engines.clients.pop(model_name, None)

    def answered(self, record: RequestRecord) -> None:
        """Count an HTTP request that has ended. What no route answers counts as one handler."""
        method = record.method if record.method in _METHODS else "OTHER"
        handler = record.route or "none"
        self._http.labels(method, handler, str(record.status)).inc()
        self._http_s.labels(method, handler).observe(record.duration_s)
        if record.answers:
            longest = max(answer.timer.num_tokens for answer in record.answers)
            self._longest_answer.labels(record.model).observe(longest)
        if record.status in _REFUSED and record.problem is not None:
            self._rejections.labels(record.model, record.problem.code or "other").inc()

    def watch_open(self, count: Callable[[], int]) -> None:
        """Report from now on how many answers are open."""
        text = "Answers being made or waited for, as the server counts them."
        Gauge("caudal:open_requests", text, registry=self._registry).set_function(count)

    def exposition(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, [LABEL], registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, [LABEL], registry=self._registry, buckets=buckets)


class _KeyMetrics:
    """Counts per key, in a bounded number of series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["key", LABEL]
        self._seen: set[str] = set()
        self.requests = Counter("caudal:key_requests", "Answers by key.", [*labels, "reason"], registry=registry)
        self.prompt_tokens = Counter("caudal:key_prompt_tokens", "Prompt tokens by key.", labels, registry=registry)
        self.generation_tokens = Counter(
            "caudal:key_generation_tokens", "Generated tokens by key.", labels, registry=registry
        )

    def label(self, tenant: str) -> str:
        """Return a key's label: its id, or that of all others if there are too many."""
        if tenant not in self._seen:
            if len(self._seen) >= MAX_KEYS:
                return OTHER_KEYS
            self._seen.add(tenant)
        return tenant


class ModelMetrics:
    """The metrics of one model."""

    def __init__(self, families: ServerMetrics, model_name: str) -> None:
        self._name = model_name
        self._keys = families.keys
        self._prompt_tokens = families.prompt_tokens.labels(model_name)
        self._cached_tokens = families.cached_tokens.labels(model_name)
        self._generation_tokens = families.generation_tokens.labels(model_name)
        self.first_token_s = families.first_token_s.labels(model_name)
        self.token_s = families.token_s.labels(model_name)
        self.output_token_s = families.output_token_s.labels(model_name)
        self.request_token_s = families.request_token_s.labels(model_name)
        self.request_s = families.request_s.labels(model_name)
        self.queue_s = families.queue_s.labels(model_name)
        self.prefill_s = families.prefill_s.labels(model_name)
        self.decode_s = families.decode_s.labels(model_name)
        self.inference_s = families.inference_s.labels(model_name)
        self.request_prompt_tokens = families.request_prompt_tokens.labels(model_name)
        self.request_generation_tokens = families.request_generation_tokens.labels(model_name)
        self._params_n = families.params_n.labels(model_name)
        self._params_max_tokens = families.params_max_tokens.labels(model_name)
        self._ends = {reason: families.ends.labels(model_name, reason) for reason in FINISH_REASONS}

    def asked(self, answers: Sequence[Answer]) -> None:
        """Count what a request asks for."""
        self._params_n.observe(len(answers))
        for answer in answers:
            if answer.request.params.max_tokens is not None:
                self._params_max_tokens.observe(answer.request.params.max_tokens)

    def read(self, num_prompt_tokens: int, num_cached_tokens: int, tenant: str) -> None:
        """Count a prompt that has been read."""
        self._prompt_tokens.inc(num_prompt_tokens)
        self._cached_tokens.inc(num_cached_tokens)
        if self._keys is not None:
            self._keys.prompt_tokens.labels(self._keys.label(tenant), self._name).inc(num_prompt_tokens)

    def wrote(self, num_tokens: int, tenant: str) -> None:
        """Count generated tokens."""
        self._generation_tokens.inc(num_tokens)
        if self._keys is not None:
            self._keys.generation_tokens.labels(self._keys.label(tenant), self._name).inc(num_tokens)

    def finished(self, reason: str, tenant: str = "") -> None:
        """Count the end of an answer."""
        self._ends[reason].inc()
        if self._keys is not None:
            self._keys.requests.labels(self._keys.label(tenant), self._name, reason).inc()

    def timer(self, num_prompt_tokens: int, tenant: str = "") -> AnswerTimer:
        """Return the clock of an answer that begins now."""
        return AnswerTimer(self, num_prompt_tokens, tenant)
