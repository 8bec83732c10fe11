"""Every query of our dashboard, of the alerts and of vLLM's dashboard, asked of a Prometheus that scrapes a server."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from conftest import make_config, real_server
from scripted_engine import ScriptedEngine

from caudal.engine.local_client import LocalEngineClient
from caudal.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "caudal.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
NEEDS = "{} is not installed: runs where Debian's package prometheus is"
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs: [{{job_name: caudal, static_configs: [{{targets: ["{address}"]}}]}}]
"""
# What vLLM's own example dashboard asks for; the model's name is a variable there.
VLLM = (
    *(
        f'histogram_quantile(0.9, sum by(le) (rate(vllm:{name}_bucket{{model_name="scripted"}}[30s])))'
        for name in (
            "e2e_request_latency_seconds",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "time_per_output_token_seconds",
            "request_time_per_output_token_seconds",
        )
    ),
    *(f"rate(vllm:{name}_sum[30s]) / rate(vllm:{name}_count[30s])" for name in ("e2e_request_latency_seconds",)),
    *(f"rate(vllm:request_{name}_time_seconds_sum[30s])" for name in ("queue", "prefill", "decode", "inference")),
    *(f"rate(vllm:{name}_tokens_total[30s])" for name in ("prompt", "generation")),
    *(f"sum by(le) (increase(vllm:request_{name}_tokens_bucket[30s]))" for name in ("prompt", "generation")),
    "sum by(finished_reason) (increase(vllm:request_success_total[30s]))",
    "rate(vllm:request_max_num_generation_tokens_sum[30s])",
    'vllm:num_requests_running{model_name="scripted"}',
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
)


def program(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(NEEDS.format(name))
    return found


def dashboard_queries():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "30s").replace("$model", ".*")


def alert_queries():
    """The expressions of the alerts, without the thresholds, which nothing exceeds here."""
    for expr in re.findall(r"expr: (.*)", ALERTS.read_text()):
        yield re.sub(r" (?:==|>) [\d.]+(?: and .*)?$", "", expr).replace("5m", "30s")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Ask a Prometheus that has seen traffic of every kind."""
    binary = program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    settings = ServerSettings(max_open_requests=4)
    with real_server(lambda: LocalEngineClient(ScriptedEngine(make_config())), settings) as (url, _):
        (folder / "prometheus.yml").write_text(CONFIG.format(address=url.removeprefix("http://")))
        port, done = free_port(), threading.Event()
        command = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log, stdout=log)
        traffic = threading.Thread(target=keep_busy, args=(url, done))
        traffic.start()
        try:
            wait_until_ready(f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            done.set()
            traffic.join()
            process.terminate()
            process.wait(20)


def wait_until_ready(base):
    """A Prometheus that listens answers 503 in plain text until it has read its log."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{base}/-/ready").status_code == HTTPStatus.OK:
                return
        time.sleep(0.1)
    pytest.fail("Prometheus has not become ready within 60 s")


def keep_busy(url, done):
    with httpx.Client(timeout=10) as http:

        def ask(text, **fields):
            body = {"messages": [{"role": "user", "content": text}], **fields}
            http.post(f"{url}/chat/completions", json=body)

        while not done.is_set():
            ask("say:" + "a long beginning that the cache may know " * 2, n=2)
            ask("x", temperature=-1)
            ask("crash")
            endless = {"prompt": ["slow-loop:x"] * 4, "max_tokens": 400, "stream": True}
            with http.stream("POST", f"{url}/v1/completions", json=endless) as r:
                chunks = r.iter_raw()  # a stream whose iterator is gone is closed
                next(chunks)
                httpx.post(f"{url}/v1/completions", json={"prompt": "x"})  # one more than may be open
            done.wait(0.1)


def values(base, query):
    """Return the numbers that a query gives; fail if it is no query."""
    response = httpx.get(f"{base}/api/v1/query", params={"query": query})
    body = response.json()
    assert body["status"] == "success", (query, body)
    return [float(series["value"][1]) for series in body["data"]["result"]]


@pytest.mark.parametrize("source", [dashboard_queries, alert_queries, lambda: VLLM], ids=["caudal", "alerts", "vllm"])
def test_every_query_returns_data(prometheus, source):
    waiting = list(source())
    assert len(waiting) >= 8
    deadline = time.monotonic() + 40
    while waiting:
        waiting = [q for q in waiting if not any(math.isfinite(value) for value in values(prometheus, q))]
        assert time.monotonic() < deadline, waiting
        time.sleep(0.3)


def test_the_alerts_are_rules():
    done = subprocess.run([program("promtool"), "check", "rules", str(ALERTS)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


def test_the_configuration_is_one():
    path = ALERTS.with_name("prometheus.yml")
    done = subprocess.run([program("promtool"), "check", "config", str(path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


def test_the_dashboard_is_fresh():
    script = ROOT / "scripts" / "generate_dashboard.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dashboard_asks_for_metrics_that_exist():
    """Also where there is no Prometheus: every name in a query is one that the server writes."""
    known = set(re.findall(r'"((?:vllm|caudal):\w+|http_\w+)"', "".join(p.read_text() for p in SOURCES)))
    for query in (*dashboard_queries(), *alert_queries(), *VLLM):
        for name in re.findall(r"(?:vllm|caudal):\w+|http_\w+", query):
            plain = re.sub(r"_(bucket|sum|count)$", "", name)
            assert plain in known or plain.removesuffix("_total") in known, name


SOURCES = tuple((ROOT / "src" / "caudal" / "server" / name) for name in ("metrics.py", "engine_metrics.py"))
