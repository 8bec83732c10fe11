"""What is read from a GGUF header, what its architecture implies, and what is refused."""

import math

import pytest
from factory import tiny_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caudal.backends.reference import ReferenceBackend
from caudal.checkpoint import GGUFFile, Weights, open_checkpoint
from caudal.errors import CheckpointError, ConfigError, MissingTensor, UnsupportedArchitecture, UnusedTensors
from caudal.models import rope
from caudal.models.architectures import ARCHITECTURES, find_architecture
from caudal.models.encoder_from_gguf import read_pooling
from caudal.models.from_gguf import read_spec
from caudal.models.load import load_model


def spec_of(path, max_model_len=None):
    with open_checkpoint(path) as checkpoint:
        return read_spec(checkpoint, Weights(checkpoint.tensors, path), max_model_len)


def tiny_spec(tmp_path, arch, keys=None, max_model_len=None, **overrides):
    metadata = {f"{arch}.{key}": value for key, value in (keys or {}).items()}
    return spec_of(tiny_checkpoint(tmp_path, arch, metadata=metadata, **overrides), max_model_len)


def windows(spec):
    return [layer.window for layer in spec.layers]


def test_an_unknown_architecture_names_the_known_ones():
    with pytest.raises(
        UnsupportedArchitecture, match=r"m\.gguf: .*'mamba'.*llama, qwen2, qwen3, gemma2, gemma3, phi3, gemma-embedding"
    ):
        find_architecture("mamba", "m.gguf")


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)
def test_every_architecture_loads(row, tmp_path):
    with open_checkpoint(tiny_checkpoint(tmp_path, row.name)) as checkpoint:
        model = load_model(checkpoint, ReferenceBackend())
    assert model.spec.architecture == row.name
    assert (model.spec.vocab_size, model.spec.hidden_size, model.spec.context_length) == (320, 64, 512)
    assert {r.interleaved for r in model.spec.ropes} == {row.name == "llama"}


def test_plain_llama(tmp_path):
    spec = tiny_spec(tmp_path, "llama")
    assert spec.norm_eps == pytest.approx(1e-5)
    assert (spec.embed_scale, spec.activation, spec.attention_softcap, spec.final_softcap) == (1.0, "silu", None, None)
    layer = spec.layers[0]
    assert (layer.num_heads, layer.num_kv_heads, layer.head_size, layer.ffn_size) == (4, 2, 16, 96)
    assert layer.attention_scale == 0.25
    assert spec.ropes[0].inv_freq[:2] == (1.0, pytest.approx(10000 ** (-1 / 8)))
    assert spec.kv_windows == (None,)


def test_products_are_counted(tmp_path):
    spec = tiny_spec(tmp_path, "llama")
    macs = 0
    for layer in spec.layers:
        q, kv = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
        macs += 64 * q + 2 * 64 * kv + q * 64 + 3 * 64 * layer.ffn_size
    assert spec.macs_per_token == macs
    assert spec.macs_per_context_token == len(spec.layers) * 2 * 4 * 16
    sliding = tiny_spec(tmp_path, "gemma3")
    num_full = windows(sliding).count(None)
    assert 0 < num_full < len(sliding.layers)
    assert sliding.macs_per_context_token == num_full * 2 * sliding.layers[0].num_heads * sliding.layers[0].head_size


def test_kv_heads_and_ffn_sizes_may_differ_by_layer(tmp_path):
    spec = tiny_spec(tmp_path, "llama", {"attention.head_count_kv": [1, 4], "feed_forward_length": [96, 64]})
    assert [layer.num_kv_heads for layer in spec.kv_layers()] == [1, 4]
    assert [layer.ffn_size for layer in spec.layers] == [96, 64]


def test_gemma2_implies_what_its_file_leaves_out(tmp_path):
    keys = dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"))
    spec = tiny_spec(tmp_path, "gemma2", keys, num_layers=4, context_length=8192)
    assert (spec.attention_softcap, spec.final_softcap, spec.activation) == (50.0, 30.0, "gelu_tanh")
    assert spec.embed_scale == 8.0
    assert windows(spec) == [4096, None, 4096, None]
    assert len(spec.ropes) == 1


def test_gemma3_implies_what_its_file_leaves_out(tmp_path):
    spec = tiny_spec(tmp_path, "gemma3", num_layers=7)
    assert windows(spec) == [16] * 5 + [None, 16]
    assert spec.kv_windows == (None, 16)
    assert [layer.group for layer in spec.kv_layers()] == [1] * 5 + [0, 1]
    thetas = [r.inv_freq[1] ** -8 for r in spec.ropes]
    assert thetas == [pytest.approx(1e4), pytest.approx(1e6)]
    assert [layer.rope for layer in spec.layers] == [0] * 5 + [1, 0]


def test_gemma_embedding_reads_both_ways(tmp_path):
    spec = tiny_spec(tmp_path, "gemma-embedding", num_layers=7)
    assert windows(spec) == [9] * 5 + [None, 9]  # 16 reaches 8 tokens either way
    assert not any(spec.attention(index).is_causal for index in range(7))
    assert spec.kv_windows == (None,)
    assert {layer.group for layer in spec.kv_layers()} == {0}
    assert [r.inv_freq[1] ** -8 for r in spec.ropes] == [pytest.approx(1e4), pytest.approx(1e6)]
    odd = {"attention.sliding_window": 15}
    assert windows(tiny_spec(tmp_path, "gemma-embedding", odd))[0] == 8
    assert windows(tiny_spec(tmp_path, "gemma-embedding", max_model_len=10))[0] == 9
    assert windows(tiny_spec(tmp_path, "gemma-embedding", max_model_len=9)) == [None] * 6


@pytest.mark.parametrize(("kind", "pooling"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")])
def test_a_decoder_that_sees_both_ways_is_always_pooled(kind, pooling, tmp_path):
    path = tiny_checkpoint(tmp_path, "gemma-embedding", metadata={"gemma-embedding.pooling_type": kind})
    with open_checkpoint(path) as checkpoint:
        assert read_pooling(checkpoint) == pooling


@pytest.mark.parametrize(("arch", "wanted"), [("llama", True), ("gemma-embedding", False)])
def test_attention_the_other_way_is_refused(arch, wanted, tmp_path):
    assert tiny_spec(tmp_path, arch, {"attention.causal": wanted}).is_causal is wanted
    with pytest.raises(UnsupportedArchitecture, match=rf"{arch}.attention.causal is {not wanted}"):
        tiny_spec(tmp_path, arch, {"attention.causal": not wanted})


def test_scaling_leaves_the_local_rope_alone(tmp_path):
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 2e4}
    spec = tiny_spec(tmp_path, "gemma3", keys)
    local, main = spec.ropes
    assert (local.inv_freq[0], main.inv_freq[0]) == (1.0, 0.125)
    assert local.inv_freq[1] ** -8 == pytest.approx(2e4)


@pytest.mark.parametrize(("arch", "num_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_gemmas_scale_by_hidden_size(arch, num_layers, tmp_path):
    spec = tiny_spec(tmp_path, arch, num_layers=num_layers, num_heads=2, head_dim=16, num_kv_heads=1)
    assert spec.layers[0].attention_scale == pytest.approx((64 / 2) ** -0.5)
    other = tiny_spec(tmp_path, arch, num_heads=2, head_dim=16, num_kv_heads=1)
    assert other.layers[0].attention_scale == 16**-0.5


def test_the_file_may_give_the_pattern_as_a_list_or_a_period(tmp_path):
    key = "attention.sliding_window_pattern"
    listed = tiny_spec(tmp_path, "gemma3", {key: [False, True, True]}, num_layers=3)
    assert windows(listed) == [None, 16, 16]
    assert windows(tiny_spec(tmp_path, "gemma3", {key: 3}, num_layers=4)) == [16, 16, None, 16]
    assert windows(tiny_spec(tmp_path, "gemma3", {key: 1}, num_layers=2)) == [None, None]


def test_groups_of_sliding_layers(tmp_path):
    key = "attention.sliding_window"
    assert tiny_spec(tmp_path, "phi3", {key: 100}).kv_windows == (100,)
    assert tiny_spec(tmp_path, "phi3", {key: 100}, max_model_len=100).kv_windows == (None,)
    assert tiny_spec(tmp_path, "phi3", {key: 512}).kv_windows == (None,)
    assert tiny_spec(tmp_path, "qwen2", {key: 100}).kv_windows == (None,)  # qwen2 names windows it does not use


def test_llama3_factors_divide_the_frequencies(tmp_path):
    (scaled,), (plain,) = (tiny_spec(tmp_path, "llama", rope_factors=value).ropes for value in (True, False))
    divisors = [f / s for f, s in zip(plain.inv_freq, scaled.inv_freq, strict=True)]
    assert divisors == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8])


def test_yarn(tmp_path):
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
    (yarn,) = tiny_spec(tmp_path, "qwen2", keys, rope_theta=10000.0).ropes
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    plain = rope.plain_frequencies(10000.0, 16)
    stretch = [p / y for p, y in zip(plain, yarn.inv_freq, strict=True)]
    assert stretch[0] == 1.0
    assert stretch[-1] == pytest.approx(4.0)
    assert stretch == sorted(stretch)


def test_a_longer_context_than_the_model_has_is_refused(tmp_path):
    with open_checkpoint(tiny_checkpoint(tmp_path)) as checkpoint, pytest.raises(ConfigError, match=r"513.*512"):
        load_model(checkpoint, ReferenceBackend(), 513)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block_count": None}, "llama.block_count' is missing"),
        ({"block_count": 2**40}, "llama.block_count is 1099511627776"),
        ({"block_count": 0}, "llama.block_count is 0"),
        ({"attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"attention.head_count_kv": 3}, "head_count_kv is 3; expected a divisor of attention.head_count, 4"),
        ({"attention.head_count_kv": [2]}, "expected 2 of int"),
        ({"attention.value_length": 32}, "value_length is 32; expected attention.key_length, 16"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon is 0"),
        ({"rope.dimension_count": 15}, "rope.dimension_count is 15; expected an even number up to the head size, 16"),
        ({"rope.dimension_count": 18}, "rope.dimension_count is 18"),
        ({"rope.freq_base": float("nan")}, "rope.freq_base is nan"),
        ({"rope.freq_base": 5e-324}, "rope.freq_base is .*expected a number of at least 1"),
        ({"rope.scaling.type": "dynamic"}, "rope.scaling.type is dynamic; expected none, linear or yarn"),
        ({"rope.scaling.factor": -2.0}, "rope.scaling.factor is -2"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"context_length": "long"}, "llama.context_length"),
        ({"embedding_length": 32}, r"token_embd.weight' has shape \(320, 64\); the model expects \(320, 32\)"),
        ({"vocab_size": 319}, r"token_embd.weight' has shape \(320, 64\); the model expects \(319, 64\)"),
        ({"feed_forward_length": 97}, r"blk.0.ffn_gate.weight' has shape \(96, 64\); the model expects \(97, 64\)"),
        ({"attention.key_length": 8, "attention.value_length": 8, "rope.dimension_count": 8}, "blk.0.attn_q.weight"),
    ],
)
def test_headers_that_lie(keys, message, tmp_path):
    path = tiny_checkpoint(tmp_path, metadata={f"llama.{key}": value for key, value in keys.items()})
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError, match=message) as caught:
        load_model(checkpoint, ReferenceBackend())
    assert str(path) in str(caught.value)


def without(checkpoint, *names):
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in names}
    assert len(tensors) == len(checkpoint.tensors) - len(names)
    return GGUFFile(checkpoint.path, dict(checkpoint.metadata), tensors)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("llama", "blk.1.ffn_down.weight"),
        ("llama", "output_norm.weight"),
        ("llama", "token_embd.weight"),
        ("qwen2", "blk.0.attn_k.bias"),
        ("qwen3", "blk.1.attn_q_norm.weight"),
        ("gemma2", "blk.0.post_ffw_norm.weight"),
        ("gemma3", "blk.5.attn_k_norm.weight"),
        ("gemma-embedding", "blk.5.attn_k_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(arch, name, tmp_path):
    with open_checkpoint(tiny_checkpoint(tmp_path, arch)) as checkpoint, pytest.raises(MissingTensor, match=name):
        load_model(without(checkpoint, name), ReferenceBackend())


def test_tensors_without_a_place_are_named(tmp_path):
    path = tiny_checkpoint(tmp_path, metadata={"llama.block_count": 1})
    with open_checkpoint(path) as checkpoint, pytest.raises(UnusedTensors, match=r"blk\.1\.attn_norm\.weight"):
        load_model(checkpoint, ReferenceBackend())


KEYS = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size", "rope.freq_base"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "attention.sliding_window", "attention.sliding_window_pattern", "rope.scaling.factor"),
    *("rope.scaling.type", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "attention.scale"),
    *("attn_logit_softcapping", "rope.freq_base_swa", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_slow"),
)
ROPE_KEYS = [key for key in KEYS if key.startswith("rope.") and key != "rope.scaling.type"]
VALUES = st.one_of(
    st.integers(-(2**31), 2**64 - 1),
    st.sampled_from([0, 1, 2, 3, 16, 64, 96, True, "yarn", "", [1, 2], [True, False], [], 1e308, 1e-320, 0.5]),
    st.floats(width=64),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["llama", "gemma3", "gemma-embedding"]),
    st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3),
)
def test_any_header_gives_a_model_or_a_checkpoint_error(tmp_path, arch, keys):
    check_header(tmp_path, arch, keys)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["yarn", "linear", "none"]), st.dictionaries(st.sampled_from(ROPE_KEYS), VALUES, max_size=4))
def test_any_rope_gives_a_model_or_a_checkpoint_error(tmp_path, kind, keys):
    check_header(tmp_path, "llama", {"rope.scaling.factor": 4.0, **keys, "rope.scaling.type": kind})


def check_header(tmp_path, arch, keys):
    path = tmp_path / f"{arch}.gguf"
    if not path.exists():
        tiny_checkpoint(path, arch)
    with open_checkpoint(path) as opened:
        changed = {**opened.metadata, **{f"{arch}.{key}": value for key, value in keys.items()}}
        checkpoint = GGUFFile(path, changed, dict(opened.tensors))
        try:
            spec = load_model(checkpoint, ReferenceBackend()).spec
        except CheckpointError:
            return
        assert all(math.isfinite(f) for r in spec.ropes for f in (*r.inv_freq, r.attention_factor))
