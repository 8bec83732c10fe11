"""How much memory the KV cache is planned from."""

import pytest

from caudal.config import EngineConfig
from caudal.engine.kv_plan import KVDemand, free_memory_bytes, plan_blocks
from caudal.errors import ConfigError

GIB = 1 << 30


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
