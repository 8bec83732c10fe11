from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import pytest
from conftest import in_process, make_config
from factory import tiny_checkpoint
from scripted_engine import ScriptedEngine
from test_openai_routes import chat, complete, until

from caudal.engine.load import load_engine
from caudal.messages import STEP_TOKENS, AddRequest
from caudal.sampling_params import SamplingParams
from caudal.server.metrics import MAX_KEYS, OTHER_KEYS, ServerMetrics
from caudal.server.settings import ServerSettings

# vLLM's names have a colon, and one that is no counter ends like one. Dashboards know them so.
KNOWN_LINT = re.compile(
    r"^\S+ (metric names should not contain ':'"
    r"|non-counter metrics should not have \"_total\" suffix)$"
)
SAMPLE = re.compile(r"^([a-z_:]+)(?:\{(.*)\})? (\S+)$")


async def samples(http):
    """The page as (name, labels without model_name) -> value."""
    found = {}
    for line in (await http.get("/metrics")).text.splitlines():
        if match := SAMPLE.match(line):
            labels = re.sub(r'model_name="[^"]*",?', "", match[2] or "").strip(",")
            found[match[1], labels] = float(match[3])
    return found


async def test_how_long_a_request_waited_is_the_engines_word(http):
    await chat(http, "say:hello")
    page = await samples(http)
    assert page["vllm:request_queue_time_seconds_sum", ""] == 0.25
    assert page["vllm:request_prefill_time_seconds_sum", ""] == 0.5
    assert page["vllm:request_inference_time_seconds_sum", ""] >= 0.5
    for name in ("queue", "prefill", "decode", "inference"):
        assert page[f"vllm:request_{name}_time_seconds_count", ""] == 1


async def test_what_was_asked_for(http):
    await chat(http, "say:a", n=3, max_tokens=7)
    await complete(http, ["say:a", "say:b"], max_tokens=20)
    page = await samples(http)
    assert page["vllm:request_params_n_sum", ""] == 5
    assert page["vllm:request_params_n_count", ""] == 2
    assert page["vllm:request_params_max_tokens_sum", ""] == 3 * 7 + 2 * 20
    assert page["vllm:request_max_num_generation_tokens_sum", ""] == 2 + 2


async def test_cached_prompt_tokens(http):
    for _ in range(2):
        await chat(http, "say:" + "x" * 40)
    page = await samples(http)
    assert page["vllm:prompt_tokens_cached_total", ""] >= 32
    assert page["vllm:prompt_tokens_cached_total", ""] < page["vllm:prompt_tokens_total", ""]


async def test_requests_by_route_and_status(http):
    await chat(http, "say:a")
    await chat(http, "x", temperature=-1)
    await http.get("http://127.0.0.1//v1/models/")
    await http.get("/v1/models/org/other:tag")
    await http.get("/nowhere/at/all")
    await http.request("BREW", "/coffee")
    page = await samples(http)
    expected = {
        ("POST", "/v1/chat/completions", 200): 1,
        ("POST", "/v1/chat/completions", 400): 1,
        ("GET", "/v1/models", 200): 1,
        ("GET", "/v1/models/{model_id:path}", 200): 1,
        ("GET", "none", 404): 1,
        ("OTHER", "none", 404): 1,
    }
    for (method, handler, status), count in expected.items():
        assert page["http_requests_total", f'handler="{handler}",method="{method}",status="{status}"'] == count
    assert page["http_request_duration_seconds_count", 'handler="/v1/models",method="GET"'] == 1


async def test_refusals_by_reason():
    async with in_process(ServerSettings(max_open_requests=1)) as http:
        task = asyncio.create_task(chat(http, "slow-loop:x", max_tokens=20))
        await until(lambda: http.engine.running)
        assert (await chat(http, "x")).status_code == 429
        await task
        await http.engine_client.close()
        assert (await chat(http, "x")).status_code == 503
        page = await samples(http)
        assert page["vllm:admission_rejections_total", 'reason="overloaded"'] == 1
        assert page["vllm:admission_rejections_total", 'reason="engine_unavailable"'] == 1


async def test_the_engines_figures(http):
    http.engine_client._watch.stats = http.engine.stats()
    http.engine_client.num_restarts = 3
    page = await samples(http)
    assert page["caudal:models_loaded", ""] == 1
    assert page["caudal:engine_restarts_total", ""] == 3


async def test_steps_by_their_tokens(http, monkeypatch):
    counts = [0] * (len(STEP_TOKENS) + 2)
    counts[1], counts[-2], counts[-1] = 5, 1, 10_000
    stats = type(http.engine.stats())(step_tokens=counts)
    monkeypatch.setattr(http.engine_client._watch, "stats", stats)
    monkeypatch.setattr(ScriptedEngine, "stats", lambda _: stats)
    page = await samples(http)
    name = "vllm:iteration_tokens_total"
    assert [page[f"{name}_bucket", f'le="{le}"'] for le in ("1.0", "8.0", "8192.0", "+Inf")] == [0, 5, 5, 6]
    assert page[f"{name}_sum", ""] == 10_000


async def test_no_series_per_key_unless_asked(http):
    await chat(http, "say:a")
    assert not any("key" in name for name, _ in await samples(http))


async def test_keys_are_counted_in_a_bounded_number_of_series():
    async with in_process(ServerSettings(metrics_per_key=True)) as http:
        await chat(http, "say:a")
        page = await samples(http)
        assert page["caudal:key_requests_total", 'key="",reason="stop"'] == 1
    metrics = ServerMetrics(per_key=True)
    model = metrics.watch("m", http.engine_client)
    for number in range(MAX_KEYS + 5):
        model.wrote(2, f"key-{number}")
    model.wrote(2, "key-0")
    text = metrics.exposition().decode()
    assert 'caudal:key_generation_tokens_total{key="key-0",model_name="m"} 4.0' in text
    assert f'caudal:key_generation_tokens_total{{key="{OTHER_KEYS}",model_name="m"}} 10.0' in text
    assert len(re.findall(r"^caudal:key_generation_tokens_total\{", text, re.MULTILINE)) == MAX_KEYS + 1


def check_metrics(promtool, page):
    return subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)


async def test_promtool_finds_nothing_new():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: runs where Debian's package prometheus is")
    async with in_process(ServerSettings(metrics_per_key=True)) as http:
        await chat(http, "say:a", n=2)
        await chat(http, "x", temperature=-1)
        page = (await http.get("/metrics")).content
    done = check_metrics(promtool, page)
    complaints = [line for line in done.stderr.decode().splitlines() if not KNOWN_LINT.match(line)]
    assert not complaints
    assert done.returncode in (0, 3)  # 3: it has only such complaints


def test_the_engine_says_when_it_began(tmp_path):
    """The real engine: the times add up, come once, and with the first token."""
    config = make_config(model_path=str(tiny_checkpoint(tmp_path)), max_num_seqs=1, backend="reference")
    engine = load_engine(config)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    for name in "ab":
        engine.add_request(AddRequest(request_id=name, prompt_token_ids=[3, 4, 5], params=params))
    updates = []
    while engine.has_work:
        updates += engine.step()
    times = {name: [u.start_times for u in updates if u.request_id == name] for name in "ab"}
    for own in times.values():
        assert own[0].queue_s >= 0
        assert own[0].prefill_s > 0
        assert own[1:] == [None, None]
    assert times["b"][0].queue_s > times["a"][0].prefill_s  # b waited until a had finished
    stats = engine.stats()
    assert sum(stats.step_tokens[:-1]) == stats.num_steps
    assert stats.step_tokens[-1] == 2 * (3 + 2)
