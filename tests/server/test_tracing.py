from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from byte_tokenizer import ByteTokenizer
from conftest import MODEL, in_process, make_config, real_server
from scripted_engine import ScriptedEngine
from test_openai_routes import chat, complete

from caudal.engine.local_client import LocalEngineClient
from caudal.errors import ConfigError
from caudal.server.app import app_of
from caudal.server.context import ServerContext
from caudal.server.metrics import ServerMetrics
from caudal.server.model_directory import OneModel
from caudal.server.request_record import RequestRecord
from caudal.server.settings import ServerSettings
from caudal.server.tracing import Tracer, open_tracer, operation_of

NEEDS = "opentelemetry is not installed: runs where caudal[otel] is"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans():
    """A tracer whose spans stay in memory."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=NEEDS)
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=NEEDS)
    exporter = memory.InMemorySpanExporter()
    tracer = Tracer(export.SimpleSpanProcessor(exporter))
    yield exporter, tracer
    tracer.close()


async def traced(spans, *requests):
    exporter, tracer = spans
    async with in_process() as http:
        metrics = ServerMetrics()
        models = OneModel(http.engine_client, ByteTokenizer(), MODEL, metrics)
        http._transport.app = app_of(ServerContext(models, ServerSettings(), metrics), [tracer.report])
        for request in requests:
            await request(http)
    return exporter.get_finished_spans()


async def test_a_span_per_request(spans):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "say:hello secret"}],
        "max_tokens": 50,
        "top_k": 5,
        "seed": 2**64 - 1,
    }
    (span,) = await traced(spans, lambda http: http.post("/v1/chat/completions?q=hidden", json=body, headers=headers))
    assert span.name == "chat scripted"
    assert span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "caudal",
        "gen_ai.system": "caudal",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.top_k": 5,
        "gen_ai.usage.output_tokens": len("hello secret") + 1,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.latency.time_in_queue": 0.25,
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert {name: span.attributes[name] for name in expected} == expected
    (event,) = span.events
    assert event.name == "gen_ai.first_token"
    assert span.start_time < event.timestamp <= span.end_time
    assert "secret" not in span.to_json()
    assert "hidden" not in span.to_json()


async def test_failures_are_marked(spans):
    found = await traced(
        spans,
        lambda http: chat(http, "x", temperature=-1),
        lambda http: chat(http, "crash"),
        lambda http: chat(http, "crash", stream=True),
    )
    assert [span.status.status_code.name for span in found] == ["UNSET", "ERROR", "ERROR"]
    assert [span.attributes["error.type"] for span in found] == ["invalid_value", "engine_error", "engine_error"]


async def test_routes_without_a_model_and_broken_parents(spans):
    found = await traced(
        spans,
        lambda http: http.get("/v1/models", headers={"traceparent": "nonsense"}),
        lambda http: http.get("/nowhere"),
        lambda http: complete(http, ["say:a", "say:b"]),
    )
    assert [span.name for span in found] == ["GET /v1/models", "text_completion scripted"]
    assert found[0].parent is None
    assert [event.attributes["index"] for event in found[1].events] == [0, 1]


def test_spans_reach_a_collector():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=NEEDS)
    bodies = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        settings = ServerSettings(otlp_traces_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces")
        with real_server(lambda: LocalEngineClient(ScriptedEngine(make_config())), settings) as (url, _):
            body = {"model": "scripted", "messages": [{"role": "user", "content": "say:the-secret"}]}
            assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
        collector.shutdown()
    assert {path for path, _ in bodies} == {"/v1/traces"}
    sent = b"".join(body for _, body in bodies)
    assert b"gen_ai.request.model" in sent
    assert b"the-secret" not in sent


def test_a_missing_package_or_a_wrong_url_is_one_clear_line(monkeypatch):
    with pytest.raises(ConfigError, match="expected a URL"):
        open_tracer("localhost:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"caudal\[otel\]"):
        open_tracer("http://localhost:4318/v1/traces")


def test_nothing_is_imported_unless_asked():
    code = "import sys, caudal.server.launch; sys.exit('opentelemetry' in sys.modules)"
    environment = {"PYTHONPATH": ":".join([str(Path(__file__).parents[2] / "src"), *sys.path])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/responses", "chat"),
        ("/api/chat", "chat"),
        ("/api/generate", "text_completion"),
        ("/completion", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/api/embed", "embeddings"),
        ("/tokenize", ""),
    ],
)
def test_operations(route, expected):
    record = RequestRecord({"type": "http", "method": "POST", "path": route, "headers": []})
    record.route, record.model = route, "m"
    assert operation_of(record) == expected
