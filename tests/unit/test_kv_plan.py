"""How much memory the KV cache is planned from."""

import json
from pathlib import Path

import pytest

from caudal.backends.registry import make_backend
from caudal.checkpoint import open_checkpoint
from caudal.cli import main
from caudal.config import EngineConfig
from caudal.engine.kv_plan import KVDemand, free_memory_bytes, plan_blocks
from caudal.engine.runner import Runner
from caudal.errors import ConfigError
from caudal.models.load import load_model

GIB = 1 << 30
MODEL = str(Path(__file__).parents[1] / "parity" / "data" / "llama.gguf")


def machine(folder, available, limit=None, current=0, inactive_file=0, active_file=0):
    """Write what Linux says about memory, and return the folders that it says it in."""
    (folder / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available // 1024} kB\n")
    if limit is not None:
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\nactive_file {active_file}\n")
    return folder, folder


def test_without_a_limit(tmp_path):
    assert free_memory_bytes(*machine(tmp_path, 8 * GIB)) == 8 * GIB
    assert free_memory_bytes(*machine(tmp_path, 8 * GIB, "max")) == 8 * GIB


def test_a_limit_counts_if_it_is_smaller(tmp_path):
    assert free_memory_bytes(*machine(tmp_path, 8 * GIB, 6 * GIB, 2 * GIB)) == 4 * GIB
    assert free_memory_bytes(*machine(tmp_path, 8 * GIB, 60 * GIB, 2 * GIB)) == 8 * GIB
    assert free_memory_bytes(*machine(tmp_path, 8 * GIB, GIB, 2 * GIB)) == 0


def test_the_page_cache_is_free_memory(tmp_path):
    """A model of 2 GiB was read, which fills the cache with it, and packed, in a container of 6 GiB."""
    places = machine(tmp_path, 8 * GIB, 6 * GIB, 4 * GIB, inactive_file=GIB, active_file=GIB)
    assert free_memory_bytes(*places) == 4 * GIB


def test_a_cache_that_holds_nothing_is_refused():
    with pytest.raises(ConfigError, match="kv_cache_bytes is 0; expected at least 1"):
        EngineConfig(model_path="m", kv_cache_bytes=0)
    with pytest.raises(ConfigError, match="may have 1 bytes, and one block of every layer needs 3200"):
        plan_blocks([KVDemand(100, None)], EngineConfig(model_path="m", kv_cache_bytes=1), 128)


def test_mapped_weights_are_not_free_memory(monkeypatch):
    monkeypatch.setattr("caudal.engine.kv_plan.free_memory_bytes", lambda: 1000 * 3200)
    config = EngineConfig(model_path="m")
    demands = [KVDemand(100, None)]
    assert plan_blocks(demands, config, 100_000) == (500,)
    assert plan_blocks(demands, config, 100_000, 400 * 3200) == (300,)


def test_an_unknown_type_of_cache_is_refused():
    with pytest.raises(ConfigError, match="kv_cache_dtype is 'fp8'; expected 'auto', 'f16' or 'int8'"):
        EngineConfig(model_path="m", kv_cache_dtype="fp8")


def runner(**options):
    config = EngineConfig(model_path=MODEL, num_threads=1, kv_cache_bytes=1 << 20, **options)
    backend = make_backend(config)
    with open_checkpoint(MODEL) as checkpoint:
        return Runner(load_model(checkpoint, backend), backend, config, 10_000), backend


def test_an_int8_cache_holds_twice_the_tokens(capsys):
    """Less what the scales take; `caudal show` says the same sizes."""
    pytest.importorskip(
        "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
    )
    (half, _), (whole, backend) = runner(kv_cache_dtype="int8"), runner()
    assert backend.kv_dtype == "f16"
    ratio = whole.kv_bytes_per_token / half.kv_bytes_per_token
    assert 1.5 < ratio < 2
    assert half.groups[0].num_blocks == pytest.approx(whole.groups[0].num_blocks * ratio, abs=1)
    assert main.run(["show", MODEL, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["kv_bytes_per_token"]
    assert shown == {"f16": whole.kv_bytes_per_token, "int8": half.kv_bytes_per_token}


def test_auto_is_float32_where_all_is():
    pytest.importorskip(
        "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
    )
    assert runner(exact=True)[1].kv_dtype == "f32"
    assert runner(exact=True, kv_cache_dtype="int8")[1].kv_dtype == "int8"
    assert runner(backend="reference")[1].kv_dtype == "f32"
    assert runner(backend="reference", kv_cache_dtype="f16")[1].kv_dtype == "f16"
