"""Generate deploy/grafana/caudal.json, the Grafana dashboard, from the table of panels below.

python scripts/generate_dashboard.py            write it
python scripts/generate_dashboard.py --check    fail if it differs from what would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "caudal.json"
MODEL = '{model_name=~"$model"}'
RATE = "[$__rate_interval]"
WIDTH, HEIGHT = 8, 8


class Panel(NamedTuple):
    """A graph: title, unit in Grafana's names, and (query, legend) pairs. `stat` is a single figure."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    stat: bool = False


def rate(name: str, by: str = "") -> str:
    """Return the rate of a counter, summed by labels."""
    return f"sum by ({by}) (rate({name}{MODEL}{RATE}))" if by else f"sum(rate({name}{MODEL}{RATE}))"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    """Return the 50th, 95th and 99th percentile of a histogram."""
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({name}_bucket{MODEL}{RATE})))", f"p{round(q * 100)}")
        for q in (0.5, 0.95, 0.99)
    )


def ratio(part: str, whole: str) -> str:
    """Return a ratio of rates that is 0, and not nothing, while there is no traffic."""
    return f"{rate(part)} / clamp_min({rate(whole)}, 1e-9)"


ERRORS = 'sum by (status) (rate(http_requests_total{status=~"[45].."}[$__rate_interval]))'
HTTP = "sum by (status) (rate(http_requests_total[$__rate_interval]))"
WASTE = f"1 - sum(caudal:kv_cache_used_tokens{MODEL}) / clamp_min(sum(caudal:kv_cache_allocated_tokens{MODEL}), 1)"

ENDS = rate("vllm:request_success_total", "finished_reason")
TOKENS_BY_MODEL = rate("vllm:generation_tokens_total", "model_name")
KV_USED = f"max by (model_name) (vllm:kv_cache_usage_perc{MODEL})"
ACCEPTED = ratio("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total")
RESTARTS = f"sum by (model_name) (caudal:engine_restarts_total{MODEL})"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Running", "short", ((f"sum(vllm:num_requests_running{MODEL})", "running"),), stat=True),
        Panel("Waiting", "short", ((f"sum(vllm:num_requests_waiting{MODEL})", "waiting"),), stat=True),
        Panel("Models loaded", "short", (("sum(caudal:models_loaded)", "models"),), stat=True),
    ),
    "Throughput": (
        Panel(
            "Tokens per second",
            "short",
            ((rate("vllm:prompt_tokens_total"), "prompt"), (rate("vllm:generation_tokens_total"), "generated")),
        ),
        Panel("Answers per second", "reqps", ((ENDS, "{{finished_reason}}"),)),
        Panel("Generated tokens per second by model", "short", ((TOKENS_BY_MODEL, "{{model_name}}"),)),
    ),
    "Latency": (
        Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
        Panel("Time between tokens", "s", quantiles("vllm:inter_token_latency_seconds")),
        Panel("Whole answer", "s", quantiles("vllm:e2e_request_latency_seconds")),
        Panel("In the queue", "s", quantiles("vllm:request_queue_time_seconds")),
        Panel("Reading the prompt", "s", quantiles("vllm:request_prefill_time_seconds")),
        Panel("Writing the answer", "s", quantiles("vllm:request_decode_time_seconds")),
    ),
    "Queue and memory": (
        Panel(
            "Requests",
            "short",
            (
                (f"sum by (model_name) (vllm:num_requests_running{MODEL})", "{{model_name}} running"),
                (f"sum by (model_name) (vllm:num_requests_waiting{MODEL})", "{{model_name}} waiting"),
            ),
        ),
        Panel("KV cache used", "percentunit", ((KV_USED, "{{model_name}}"),)),
        Panel("KV cache wasted in part-filled blocks", "percentunit", ((WASTE, "waste"),)),
        Panel(
            "Prefix cache hits",
            "percentunit",
            ((ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"), "hit rate"),),
        ),
        Panel("Preemptions per second", "short", ((rate("vllm:num_preemptions_total"), "preemptions"),)),
        Panel("Guessed tokens that were right", "percentunit", ((ACCEPTED, "accepted"),)),
    ),
    "Errors": (
        Panel("HTTP requests by status", "reqps", ((HTTP, "{{status}}"),)),
        Panel("Errors by status", "reqps", ((ERRORS, "{{status}}"),)),
        Panel(
            "Refused for now",
            "reqps",
            (("sum by (reason) (rate(vllm:admission_rejections_total[$__rate_interval]))", "{{reason}}"),),
        ),
        Panel("Engine restarts", "short", ((RESTARTS, "{{model_name}}"),)),
    ),
    "Requests": (
        Panel("Prompt length", "short", quantiles("vllm:request_prompt_tokens")),
        Panel("Answer length", "short", quantiles("vllm:request_generation_tokens")),
        Panel("Tokens in a step", "short", quantiles("vllm:iteration_tokens_total")),
    ),
}


def panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, object]:
    """Return a panel as Grafana reads it."""
    datasource = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"datasource": datasource, "expr": expr, "legendFormat": legend, "refId": chr(ord("A") + i)}
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "title": panel.title,
        "type": "stat" if panel.stat else "timeseries",
        "datasource": datasource,
        "gridPos": {"h": HEIGHT // 2 if panel.stat else HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def panels() -> list[dict[str, object]]:
    """Return every panel, laid out in rows of three."""
    made: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": 3 * WIDTH, "x": 0, "y": y}
        made.append(
            {"id": len(made) + 1, "title": title, "type": "row", "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        for i, panel in enumerate(row):
            made.append(panel_json(panel, len(made) + 1, i % 3 * WIDTH, y + i // 3 * HEIGHT))
        y += (len(row) + 2) // 3 * HEIGHT
    return made


def dashboard() -> str:
    """Return the file."""
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    model = {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(vllm:num_requests_running, model_name)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    page = {
        "uid": "caudal",
        "title": "Caudal",
        "description": "Generated by scripts/generate_dashboard.py.",
        "tags": ["caudal", "llm"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [datasource, model]},
        "panels": panels(),
    }
    return json.dumps(page, indent=1) + "\n"


def main() -> int:
    """Write or check the file; return the exit status."""
    text = dashboard()
    if "--check" not in sys.argv:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(text)
    elif not FILE.exists() or FILE.read_text() != text:
        sys.stderr.write("deploy/grafana/caudal.json is not what scripts/generate_dashboard.py says; run make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
