"""Makes the reference data anew and compares it with what is committed. `make parity` runs this.

Needs torch and transformers, in this interpreter or in the one that CAUDAL_PARITY_PYTHON names.
"""

import os
import subprocess

import numpy as np
import pytest
from generate_reference import CASES, DATA, ROOT
from parity_steps import Sequence, load_case, make_backend, python_with_torch, relative_error, run_sequences

from caudal.checkpoint import open_checkpoint

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("reference")
    script = DATA.parent / "generate_reference.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [python_with_torch(), script, directory], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@each_case
def test_the_committed_model_is_what_the_generator_makes(case, regenerated):
    with (
        open_checkpoint(DATA / f"{case.name}.gguf") as old,
        open_checkpoint(regenerated / f"{case.name}.gguf") as new,
    ):
        assert old.metadata == new.metadata
        assert list(old.tensors) == list(new.tensors)
        for name, tensor in old.tensors.items():
            # Factors of llama3 come out of torch's float32.
            tolerance = 1e-6 if name == "rope_freqs.weight" else 0
            np.testing.assert_allclose(tensor.dequantize(), new.tensors[name].dequantize(), rtol=tolerance)


@each_case
def test_the_committed_logits_are_what_transformers_gives(case, regenerated):
    with np.load(DATA / f"{case.name}.npz") as old, np.load(regenerated / f"{case.name}.npz") as new:
        assert (old["token_ids"] == new["token_ids"]).all()
        assert relative_error(new["logits"], old["logits"]) < 1e-5


@each_case
def test_fresh_logits(case, regenerated):
    backend = make_backend("reference")
    model, token_ids, expected = load_case(case, backend, regenerated)
    (logits,) = run_sequences(model, backend, [Sequence(token_ids)])
    assert relative_error(logits, expected) < 1e-4
