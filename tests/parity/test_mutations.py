"""A model that is wrong in one point gives logits that the parity tests would refuse: the check is sensitive."""

from dataclasses import replace

import numpy as np
import pytest
from generate_reference import CASES, DATA
from parity_steps import Sequence, case_named, relative_error, run_sequences

from caudal.backends.reference import ReferenceBackend
from caudal.checkpoint import Weights, open_checkpoint
from caudal.models import rope
from caudal.models.decoder import Decoder
from caudal.models.from_gguf import read_spec

NOTICEABLE = 1e-3  # ten times the tolerance of test_reference_logits.py


def layers(spec, **changes):
    """Every layer changed; a change is a value or a function of the layer's index and the layer."""

    def changed(index, layer):
        return replace(layer, **{k: v(index, layer) if callable(v) else v for k, v in changes.items()})

    return replace(spec, layers=tuple(changed(index, layer) for index, layer in enumerate(spec.layers)))


def ropes(spec, **changes):
    """Every rope changed; a change is a value or a function of the rope."""
    return replace(
        spec,
        ropes=tuple(replace(r, **{k: v(r) if callable(v) else v for k, v in changes.items()}) for r in spec.ropes),
    )


def other_layout(spec):
    return ropes(spec, interleaved=lambda r: not r.interleaved)


def unscaled(theta):
    return lambda spec: ropes(spec, inv_freq=lambda r: rope.plain_frequencies(theta, r.rotary_dims))


def other_scale(spec):
    return layers(spec, attention_scale=lambda _, layer: layer.attention_scale * 1.1)


def other_eps(spec):
    return replace(spec, norm_eps=spec.norm_eps + 0.01)


def window(change):
    return lambda spec: layers(spec, window=lambda _, layer: None if layer.window is None else change(layer.window))


def shifted_pattern(spec):
    return layers(spec, window=lambda index, _: spec.layers[(index + 1) % len(spec.layers)].window)


def without(*names):
    """Drop tensors, and the demand for them."""

    def mutate(spec, tensors):
        kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(names)}
        assert len(kept) < len(tensors)
        return replace(spec, required_tensors=()), kept

    return mutate


def swapped(first, second):
    """Exchange tensors of the same shape."""

    def mutate(spec, tensors):
        pairs = {name: tensors[name.replace(first, second)] for name in tensors if first in name}
        assert pairs
        return spec, {**tensors, **pairs, **{n.replace(first, second): tensors[n] for n in pairs}}

    return mutate


SPEC_MUTATIONS = {
    "llama": {"layout": other_layout, "scale": other_scale, "eps": other_eps, "theta": unscaled(11000.0)},
    "llama3-rope-biases": {"layout": other_layout, "no scaling": unscaled(500000.0)},
    "mistral": {
        "layout": other_layout,
        "full attention": window(lambda _: None),
        "window one more": window(lambda size: size + 1),
        "window one less": window(lambda size: size - 1),
    },
    "qwen2": {"layout": other_layout, "scale": other_scale},
    "qwen2-yarn": {"no scaling": unscaled(10000.0), "attention factor": lambda s: ropes(s, attention_factor=1.0)},
    "qwen3": {"layout": other_layout, "eps": other_eps},
    "gemma2": {
        "layout": other_layout,
        "attention softcap": lambda s: replace(s, attention_softcap=None),
        "final softcap": lambda s: replace(s, final_softcap=None),
        "full attention": window(lambda _: None),
        "pattern": shifted_pattern,
        "embedding scale": lambda s: replace(s, embed_scale=1.0),
        "activation": lambda s: replace(s, activation="silu"),
        "scale": other_scale,
    },
    "gemma3": {
        "layout": other_layout,
        "one rope": lambda s: layers(s, rope=s.layers[-1].rope),
        "ropes exchanged": lambda s: layers(s, rope=lambda _, layer: 1 - layer.rope),
        "pattern": shifted_pattern,
        "full attention": window(lambda _: None),
        "embedding scale": lambda s: replace(s, embed_scale=1.0),
    },
    "phi3-short": {
        "layout": other_layout,
        "no scaling": unscaled(10000.0),
        "attention factor": lambda s: ropes(s, attention_factor=1.0),
        "rotary dims": lambda s: ropes(s, rotary_dims=16, inv_freq=lambda r: r.inv_freq + (0.0,) * 4),
    },
    "phi3-long": {"no scaling": unscaled(10000.0), "window": window(lambda _: None)},
}
TENSOR_MUTATIONS = {
    "llama3-rope-biases": {
        "q bias": without("attn_q.bias"),
        "output bias": without("attn_output.bias"),
        "ffn biases": without("ffn_gate.bias", "ffn_up.bias"),
        "down bias": without("ffn_down.bias"),
        "gate and up": swapped("ffn_gate", "ffn_up"),
        "norms": swapped("attn_norm", "ffn_norm"),
    },
    "qwen2": {"k bias": without("attn_k.bias"), "v bias": without("attn_v.bias")},
    "qwen3": {"q norm": without("attn_q_norm.weight"), "k norm": without("attn_k_norm.weight")},
    "gemma2": {
        "attention post-norm": without("post_attention_norm.weight"),
        "ffn post-norm": without("post_ffw_norm.weight"),
        "norms": swapped("post_attention_norm", "ffn_norm"),
    },
    "gemma3": {"q and k norm": swapped("attn_q_norm", "attn_k_norm")},
}


def parameters(table):
    return [pytest.param(case, m, id=f"{case}: {name}") for case, row in table.items() for name, m in row.items()]


def error_of(name, mutate):
    """Relative error of the logits of a mutated model."""
    case, backend = case_named(name), ReferenceBackend()
    checkpoint = open_checkpoint(DATA / f"{name}.gguf")
    spec = read_spec(checkpoint, Weights(checkpoint.tensors, checkpoint.path), case.max_model_len)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("rope_")}
    mutated, tensors = mutate(spec, tensors)
    model = Decoder(mutated, Weights(tensors, checkpoint.path), backend)
    with np.load(DATA / f"{name}.npz") as reference:
        (logits,) = run_sequences(model, backend, [Sequence(reference["token_ids"].tolist())])
        return relative_error(logits, reference["logits"])


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_an_unchanged_model_passes(case):
    assert error_of(case, lambda spec, tensors: (spec, tensors)) < NOTICEABLE / 10


@pytest.mark.parametrize(("case", "mutate"), parameters(SPEC_MUTATIONS))
def test_a_wrong_spec_is_noticed(case, mutate):
    def changed(spec, tensors):
        assert mutate(spec) != spec
        return mutate(spec), tensors

    assert error_of(case, changed) > NOTICEABLE


@pytest.mark.parametrize(("case", "mutate"), parameters(TENSOR_MUTATIONS))
def test_wrong_tensors_are_noticed(case, mutate):
    assert error_of(case, mutate) > NOTICEABLE


@pytest.mark.parametrize("case", [case.name for case in CASES if case.arch == "phi3"])
def test_the_other_longrope_factors_are_noticed(case):
    row = case_named(case)
    checkpoint = open_checkpoint(DATA / f"{case}.gguf")

    def changed(_, tensors):
        other = 256 if row.max_model_len else 32
        return read_spec(checkpoint, Weights(checkpoint.tensors, checkpoint.path), other), tensors

    assert error_of(case, changed) > NOTICEABLE
