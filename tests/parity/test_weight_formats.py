"""A model in any weight format has the logits of the same model with every matrix dequantised to float32.

The float32 model runs on the reference backend, which knows nothing of packed weights: rows of the embedding and
products alike must come out of the kernels as the format defines them.
"""

import numpy as np
import pytest
from factory import VOCAB_SIZE, tiny_checkpoint
from parity_steps import Sequence, relative_error, run_sequences

from caudal.backends.reference import ReferenceBackend
from caudal.checkpoint import open_checkpoint
from caudal.models.load import load_model
from caudal.quant import FORMATS

BLOCK_FORMATS = tuple(name for name, block in FORMATS.items() if block.block_elems > 1)
PROMPT = np.random.default_rng(3).integers(0, VOCAB_SIZE, 48).tolist()
CHUNKS = (20, 1, 1, 7)
EXACT_TOLERANCE = 1e-4
# Mean divergence in nats that int8 activations cost models of these sizes: 5e-4 and 4e-3. One wrong sub-block scale in
# every block costs ten times more.
KL_BOUND = 1e-2


@pytest.fixture(params=BLOCK_FORMATS)
def checkpoint(request, tmp_path):
    return tiny_checkpoint(tmp_path, "llama", request.param, tied=True)


def logits_on(path, backend):
    model = load_model(open_checkpoint(path), backend, 512)
    (logits,) = run_sequences(model, backend, [Sequence(PROMPT, CHUNKS)])
    return logits


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_every_block_format_has_a_kernel(checkpoint, caplog):
    cpu_backend = pytest.importorskip(
        "caudal.backends.cpu.cpu_backend",
        reason="the native module is not built: runs after `make native` or an install, as in CI",
    )
    logits_on(checkpoint, cpu_backend.CpuBackend(num_threads=1, max_tokens=64))
    assert "no CPU kernel" not in caplog.text


def test_a_format_without_a_kernel_is_dequantised_and_said_once(tmp_path, caplog, monkeypatch):
    cpu_backend = pytest.importorskip(
        "caudal.backends.cpu.cpu_backend",
        reason="the native module is not built: runs after `make native` or an install, as in CI",
    )
    monkeypatch.setattr(cpu_backend, "KERNEL_FORMATS", cpu_backend.KERNEL_FORMATS - {"IQ4_NL"})
    path = tiny_checkpoint(tmp_path, "llama", "IQ4_NL")
    found = logits_on(path, cpu_backend.CpuBackend(num_threads=1, max_tokens=64, exact=True))
    assert [record.message for record in caplog.records] == [
        "no CPU kernel for IQ4_NL yet; its tensors are kept as F16"
    ]
    # float16 keeps 11 bits of each weight.
    assert relative_error(found, logits_on(path, ReferenceBackend())) < 1e-2


def test_logits_are_those_of_the_dequantised_model(checkpoint):
    cpu_backend = pytest.importorskip(
        "caudal.backends.cpu.cpu_backend",
        reason="the native module is not built: runs after `make native` or an install, as in CI",
    )
    expected = logits_on(checkpoint, ReferenceBackend())
    exact = logits_on(checkpoint, cpu_backend.CpuBackend(num_threads=2, max_tokens=64, exact=True))
    assert relative_error(exact, expected) < EXACT_TOLERANCE
    found = log_softmax(logits_on(checkpoint, cpu_backend.CpuBackend(num_threads=2, max_tokens=64)))
    truth = log_softmax(expected)
    divergence = (np.exp(truth) * (truth - found)).sum(axis=1).mean()
    assert 0 < divergence < KL_BOUND
