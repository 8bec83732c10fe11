"""The largest logit of every block, which the head's products leave behind a row of logits for the sampler."""

import numpy as np
import pytest
from factory import tiny_checkpoint

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

BLOCK = 256


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("arch", ["llama", "gemma2"])  # gemma2 ends with a soft cap
def test_rows_carry_the_maxima_of_their_blocks(arch, num_threads, tmp_path):
    model = tiny_checkpoint(tmp_path, arch, "Q8_0")
    engine = load_engine(EngineConfig(model_path=str(model), num_threads=num_threads))
    for i in range(3):
        params = SamplingParams(temperature=1.0, seed=i, max_tokens=4)
        engine.add_request(AddRequest(request_id=str(i), prompt_token_ids=[5, 9 + i, 40], params=params))
    checked = 0
    while engine.has_work:
        engine.step()
        step = engine._runner._backend._step
        at, logits = step.program.maxima_at, step.logits
        num_rows, vocabulary = logits.shape
        num_blocks = -(-vocabulary // BLOCK)
        assert at >= vocabulary
        rows = np.lib.stride_tricks.as_strided(logits, (num_rows, at + num_blocks), logits.strides)
        expected = [[row[b * BLOCK : (b + 1) * BLOCK].max() for b in range(num_blocks)] for row in logits]
        np.testing.assert_array_equal(rows[:, at:], expected)
        checked += num_rows
    assert checked >= 12
