"""EmbeddingGemma against transformers: what test_encoders.py cannot ask of all models that read."""

import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from generate_gemma_embedding import CASE, DATA
from generate_reference import ROOT, WINDOW
from parity_steps import BLOCK_SIZE, make_backend, python_with_torch, relative_error

from caudal.checkpoint import GGUFFile, Weights, open_checkpoint
from caudal.engine.pooling_engine import whole_texts
from caudal.errors import CheckpointError
from caudal.models.decoder import Decoder
from caudal.models.from_gguf import read_spec
from caudal.models.load import load_model

NOTICEABLE = 1e-3  # a hundred times the tolerance of test_encoders.py


def reference(directory=DATA):
    """Texts, and the mean of each one's rows: [texts, n]."""
    with np.load(directory / f"{CASE.name}.npz") as data:
        ends = np.cumsum(data["lengths"])[:-1]
        means = [rows.mean(axis=0) for rows in np.split(data["outputs"], ends)]
        return [text.tolist() for text in np.split(data["token_ids"], ends)], np.stack(means)


def vectors(model, backend, texts):
    """Read all texts in one step: [texts, n]."""
    batch = whole_texts(texts, "mean", BLOCK_SIZE, len(model.spec.kv_windows))
    num_blocks = [int(batch.block_tables[0].max()) + 1] * len(model.spec.kv_windows)
    step = backend.compile(model.forward, backend.kv_cache(model.spec.kv_layers(), num_blocks, BLOCK_SIZE))
    return np.array(step(batch))


def error_of(mutate):
    """Relative error of the vectors of a model whose spec was changed."""
    backend = make_backend("reference")
    with open_checkpoint(DATA / f"{CASE.name}.gguf") as checkpoint:
        weights = Weights(checkpoint.tensors, checkpoint.path)
        spec = read_spec(checkpoint, weights)
        model = Decoder(mutate(spec), weights, backend, pooling="mean")
    texts, expected = reference()
    return relative_error(vectors(model, backend, texts), expected)


def windows(change):
    return lambda spec: replace(
        spec, layers=tuple(replace(layer, window=layer.window and change(layer.window)) for layer in spec.layers)
    )


def shifted_pattern(spec):
    shifted = [layer.window for layer in (*spec.layers[1:], spec.layers[0])]
    pairs = zip(spec.layers, shifted, strict=True)
    return replace(spec, layers=tuple(replace(layer, window=window) for layer, window in pairs))


MUTATIONS = {
    "window one more": windows(lambda size: size + 1),
    "window one less": windows(lambda size: size - 1),
    "the file's window": windows(lambda _: WINDOW),
    "full attention": windows(lambda _: None),
    "causal": lambda spec: replace(spec, is_causal=True),
    "pattern": shifted_pattern,
    "one rope": lambda spec: replace(spec, layers=tuple(replace(layer, rope=0) for layer in spec.layers)),
    "embedding scale": lambda spec: replace(spec, embed_scale=1.0),
}


def test_an_unchanged_model_passes():
    assert error_of(lambda spec: spec) < NOTICEABLE / 100


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS)
def test_a_wrong_spec_is_noticed(mutate):
    assert error_of(mutate) > NOTICEABLE


def test_files_without_dense_modules_give_the_mean_of_hidden_rows():
    """Converters leave the modules out unless they are told not to."""
    backend = make_backend("reference")
    texts, expected = reference()
    with open_checkpoint(DATA / f"{CASE.name}.gguf") as checkpoint:
        dense = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("dense_")}
        kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in dense}
        means = vectors(load_model(GGUFFile(checkpoint.path, checkpoint.metadata, kept), backend), backend, texts)
        for name in ("dense_2.weight", "dense_3.weight"):
            means = means @ dense[name].dequantize().T
    assert relative_error(means, expected) < 1e-5


def test_dense_modules_must_fit_each_other():
    with open_checkpoint(DATA / f"{CASE.name}.gguf") as checkpoint:
        kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name != "dense_2.weight"}
        broken = GGUFFile(checkpoint.path, checkpoint.metadata, kept)
        with pytest.raises(CheckpointError, match=r"dense_3.* \(40, 48\); the model expects \(40, 32\)"):
            load_model(broken, make_backend("reference"))


def test_a_step_for_means_wants_one_row_of_every_text():
    backend = make_backend("cpu")
    with open_checkpoint(DATA / f"{CASE.name}.gguf") as checkpoint:
        model = load_model(checkpoint, backend)
    step = backend.compile(model.forward, backend.kv_cache(model.spec.kv_layers(), [8], BLOCK_SIZE))
    batch = whole_texts([[5, 6, 7], [8]], "mean", BLOCK_SIZE, 1)
    with pytest.raises(ValueError, match="one row of logits for each of 2 sequences, got 1"):
        step(replace(batch, logit_rows=batch.logit_rows[:1]))


def test_the_committed_data_is_what_the_generator_makes(tmp_path):
    script = DATA.parent / "generate_gemma_embedding.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [python_with_torch(), script, tmp_path], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (old_texts, old_means), (texts, means) = reference(), reference(tmp_path)
    assert texts == old_texts
    assert relative_error(means, old_means) < 1e-5
    with (
        open_checkpoint(DATA / f"{CASE.name}.gguf") as old,
        open_checkpoint(tmp_path / f"{CASE.name}.gguf") as new,
    ):
        assert old.metadata == new.metadata
        assert list(old.tensors) == list(new.tensors)
        for name, tensor in old.tensors.items():
            np.testing.assert_array_equal(tensor.dequantize(), new.tensors[name].dequantize())
