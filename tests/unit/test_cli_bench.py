"""`caudal bench`: what a token's work is, and how much of the machine's limits it took."""

import json

import pytest
from factory import tiny_checkpoint

from caudal.messages import EngineReady

native = pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.cli import main  # noqa: E402
from caudal.cli.bench import Measured  # noqa: E402
from caudal.cli.speed_tests import batch_test, generation_test, prompt_test  # noqa: E402
from caudal.config import EngineConfig  # noqa: E402
from caudal.engine.load import load_engine  # noqa: E402

FACTS = EngineReady(
    max_model_len=1, weights_bytes=1500, step_weights_bytes=1000, macs_per_token=700, macs_per_logits=50
)


@pytest.mark.parametrize(
    ("test", "bytes_read", "macs"),
    [(prompt_test(10), 100, 705), (generation_test(5), 1000, 750), (batch_test(8), 125, 750)],
    ids=["prompt", "one stream", "eight streams"],
)
def test_work_of_a_token(test, bytes_read, macs):
    assert test.work_per_token(FACTS) == (bytes_read, macs)


class CannedLimits:
    def __init__(self):
        self.reads, self.products = [100_000, 50_000, 200_000], [30_000, 30_000, 15_000]

    def read_rate(self):
        return self.reads.pop(0)

    def byte_product_rate(self):
        return self.products.pop(0)


def test_each_round_is_held_against_the_limits_of_its_own_moment(monkeypatch):
    rates = iter([50, 40, 100])
    test = generation_test(5)
    monkeypatch.setattr(type(test), "tokens_per_s", lambda *_: next(rates))
    measured = Measured(test, FACTS, CannedLimits())
    for seed in range(3):
        measured.run(None, 10, seed)
    row = measured.row()
    assert (row["tokens_per_s"], row["worst"], row["best"], row["repeats"]) == (50, 40, 100, 3)
    assert row["read_fraction"] == 0.5  # of 0.5, 0.8 and 0.5
    assert row["product_fraction"] == 1.25  # of 1.25, 1.0 and 5.0


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_step_reads_all_but_a_table_that_is_only_looked_up(tmp_path, is_tied):
    model = tiny_checkpoint(tmp_path, "llama", "F32", tied=is_tied)
    engine = load_engine(EngineConfig(model_path=str(model), num_threads=1))
    ready = engine.ready_info()
    assert ready.macs_per_logits * 4 in range(1, ready.weights_bytes)
    assert ready.step_weights_bytes == (ready.macs_per_token + ready.macs_per_logits) * 4
    assert ready.weights_bytes - ready.step_weights_bytes == (0 if is_tied else ready.macs_per_logits * 4)


def test_json_of_a_real_run(tmp_path, capsys):
    model = tiny_checkpoint(tmp_path, "llama", "Q4_0")
    arguments = ["bench", str(model), "-p", "8", "-n", "4", "-b", "2", "-r", "1", "-t", "1", "--json"]
    assert main.run(arguments) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["test"] for row in rows] == ["pp8", "tg4", "b2"]
    assert all(row["read_limit_gb"] > 0 and row["product_limit_gmac"] > 0 for row in rows)
    assert all(row["read_fraction"] >= 0 and row["product_fraction"] >= 0 for row in rows)
