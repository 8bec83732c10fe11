"""OpenTelemetry: a span per request, sent by OTLP over HTTP. Only this module imports opentelemetry, and only if asked.

Attributes are those of the semantic conventions for generative AI (gen_ai.*) and HTTP. A span holds no prompt, no
answer, no key and no query.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from caudal import __version__
from caudal.errors import ConfigError

if TYPE_CHECKING:
    from caudal.server.request_record import RequestRecord

log = logging.getLogger(__name__)

_NS = 1_000_000_000
_OPERATIONS = (
    ("embed", "embeddings"),
    ("rerank", "rerank"),
    ("/completions", "text_completion"),
    ("/api/generate", "text_completion"),
    ("/completion", "text_completion"),
    ("/infill", "text_completion"),
)


def open_tracer(endpoint: str) -> Tracer:
    """Return a tracer that sends to an OTLP endpoint over HTTP, for example http://127.0.0.1:4318/v1/traces.

    Raises:
        ConfigError: opentelemetry is not installed, or the endpoint is no URL of HTTP.
    """
    if not endpoint.startswith(("http://", "https://")):
        message = f"the OTLP endpoint is {endpoint!r}; expected a URL such as http://127.0.0.1:4318/v1/traces"
        raise ConfigError(message)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same
    except ImportError as error:
        message = "--otlp-traces-endpoint needs OpenTelemetry; install it with: pip install 'caudal[otel]'"
        raise ConfigError(message) from error
    return Tracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))


class Tracer:
    """Makes a span of each request that a route has answered.

    Args:
        processor: takes the spans (opentelemetry's SpanProcessor).
    """

    def __init__(self, processor: Any) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - the same
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - the same
            TraceContextTextMapPropagator,
        )

        resource = Resource.create({"service.name": "caudal", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("caudal", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def report(self, record: RequestRecord) -> None:
        """Send a request's span. What goes wrong in that is logged and concerns nobody else."""
        if record.route is None:
            return
        try:
            self._report(record)
        except Exception:
            log.exception("no span could be made of a request")

    def close(self) -> None:
        """Send what waits, and stop."""
        self._provider.shutdown()

    def _report(self, record: RequestRecord) -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - optional

        carrier = {name: record.headers[name] for name in ("traceparent", "tracestate") if name in record.headers}
        operation = operation_of(record)
        name = f"{operation} {record.model}" if operation else f"{record.method} {record.route}"
        span = self._tracer.start_span(
            name,
            context=self._propagator.extract(carrier),
            kind=self._kind,
            attributes={**http_attributes(record), **(gen_ai_attributes(record, operation) if operation else {})},
            start_time=int(record.begun_unix_s * _NS),
        )
        for index, answer in enumerate(record.answers):
            if answer.timer.first_s is not None:
                at_ns = int(record.unix_s(answer.timer.first_s) * _NS)
                span.add_event("gen_ai.first_token", {"index": index}, timestamp=at_ns)
        if record.status >= 500 or (record.problem is not None and record.problem.status >= 500):
            span.set_status(StatusCode.ERROR)
        span.end(end_time=int((record.begun_unix_s + record.duration_s) * _NS))


def operation_of(record: RequestRecord) -> str:
    """Return gen_ai.operation.name of a request that used a model; "" of any other."""
    if not record.model:
        return ""
    route = record.route or ""
    if "chat" in route or "messages" in route or "responses" in route:
        return "chat"
    return next((operation for part, operation in _OPERATIONS if part in route), "chat" if record.answers else "")


def http_attributes(record: RequestRecord) -> dict[str, Any]:
    """Return what the conventions for HTTP servers ask for."""
    attributes: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": record.route or "",
        "http.response.status_code": record.status,
        "http.response.body.size": record.num_bytes,
        "caudal.request_id": record.request_id,
    }
    if record.client:
        attributes["client.address"] = record.client
    if record.tenant:
        attributes["caudal.key"] = record.tenant
    if record.problem is not None:
        attributes["error.type"] = record.problem.code or str(record.problem.status)
    return attributes


def gen_ai_attributes(record: RequestRecord, operation: str) -> dict[str, Any]:
    """Return what the conventions for generative AI ask for; of the answers, what they have in common."""
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "caudal",
        "gen_ai.system": "caudal",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
    }
    if not record.answers:
        return attributes
    timers = [answer.timer for answer in record.answers]
    params = record.answers[0].request.params
    attributes |= {
        "gen_ai.request.choice.count": len(record.answers),
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_tokens,
        "gen_ai.usage.cache_read.input_tokens": max(timer.num_cached_tokens for timer in timers),
        "gen_ai.response.finish_reasons": [timer.finish_reason or "error" for timer in timers],
    }
    if params.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
    if params.seed is not None and params.seed < 2**63:  # an attribute has 64 bits and a sign
        attributes["gen_ai.request.seed"] = params.seed
    first_s = [timer.first_s for timer in timers if timer.first_s is not None]
    if first_s:
        attributes["gen_ai.server.time_to_first_token"] = record.unix_s(min(first_s)) - record.begun_unix_s
    start = next((timer.start_times for timer in timers if timer.start_times is not None), None)
    if start is not None:
        attributes["gen_ai.latency.time_in_queue"] = start.queue_s
        attributes["gen_ai.latency.time_in_model_prefill"] = start.prefill_s
    return attributes
