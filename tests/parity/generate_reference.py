"""Makes the reference data of the parity tests: tiny random models as GGUF files and as Hugging Face folders, and the
logits that the original implementations give for them.

    PYTHONPATH=src python tests/parity/generate_reference.py [DIRECTORY]

writes tests/parity/data if no directory is given. Needs torch and transformers.

For each case below it builds a transformers model, gives it weights from a seeded numpy generator (rounded to the
format in which the file will hold them, so that file and model agree to the bit), converts them to GGUF as the
published converters do, lets transformers save them, and records the logits of every position of one prompt.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from caudal.checkpoint.gguf_writer import write_gguf
from caudal.quant import FORMATS

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
VOCAB_SIZE = 96
PROMPT_LENGTH = 40
WINDOW = 12  # shorter than the prompt, and no multiple of a block
CONTEXT_LENGTH = 256


@dataclass(frozen=True)
class Case:
    """One tiny model: transformers' model type and configuration, and what its GGUF header says of it."""

    name: str
    model_type: str
    arch: str
    config: dict
    keys: dict = field(default_factory=dict)
    matrix_format: str = "F16"
    max_model_len: int | None = None


SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_LENGTH,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "sliding_window": WINDOW,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 32,
}
# transformers' Phi3 has no head_dim of its own: 4 heads of 16.
PHI3 = {"hidden_size": 64, "num_hidden_layers": 2}
LONG = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
SHORT = [1.0, 1.1, 1.2, 1.4, 1.5, 1.7, 1.9, 2.0]

CASES = (
    Case(
        "llama",
        "llama",
        "llama",
        {"num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        matrix_format="F32",
    ),
    Case(
        "llama3-rope-biases",
        "llama",
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    Case(
        "mistral",
        "mistral",
        "llama",
        {"sliding_window": WINDOW, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"attention.sliding_window": WINDOW},
        matrix_format="BF16",
    ),
    Case(
        "qwen2",
        "qwen2",
        "qwen2",
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    Case(
        "qwen2-yarn",
        "qwen2",
        "qwen2",
        {
            "num_hidden_layers": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    Case("qwen3", "qwen3", "qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    Case(
        "gemma2",
        "gemma2",
        "gemma2",
        {
            **GEMMA,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "num_hidden_layers": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        {
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "attention.sliding_window": WINDOW,
        },
    ),
    # Six layers, because the sixth is the first that attends to everything. Files in circulation name neither the
    # pattern nor the local theta.
    Case(
        "gemma3",
        "gemma3_text",
        "gemma3",
        {
            **GEMMA,
            "intermediate_size": 32,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
        {
            "attention.sliding_window": WINDOW,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Case(
        "phi3-short",
        "phi3",
        "phi3",
        {
            **PHI3,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "long_factor": LONG[:4],
                "short_factor": SHORT[:4],
                "original_max_position_embeddings": 64,
            },
        },
        {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.1547005383792515},
        max_model_len=64,
    ),
    Case(
        "phi3-long",
        "phi3",
        "phi3",
        {
            **PHI3,
            "sliding_window": WINDOW,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
                "long_factor": LONG,
                "short_factor": SHORT,
                "original_max_position_embeddings": 32,
            },
        },
        {"rope.scaling.original_context_length": 32, "attention.sliding_window": WINDOW},
    ),
)

# transformers' name inside a layer -> GGUF's. `post_attention_layernorm` is named per family, below.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(case, name):
    """GGUF's name of a tensor of transformers' state dict."""
    module, _, suffix = name.rpartition(".")
    if module in TOP_NAMES:
        return f"{TOP_NAMES[module]}.{suffix}"
    _, _, index, inner = module.split(".", 3)
    names = {**LAYER_NAMES, **(GEMMA_NAMES if case.arch.startswith("gemma") else {})}
    return f"blk.{index}.{names[inner]}.{suffix}"


def draw_weights(case, shapes, seed):
    """Random weights: norms around 1 (around 0 for Gemma, which adds the 1 itself), matrices that keep variance."""
    format_ = FORMATS[case.matrix_format]
    rng = np.random.default_rng([seed, 2026])
    weights = {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            scale = 1.0 if "embed_tokens" in name else shape[-1] ** -0.5
            # Gemma multiplies embeddings by sqrt(hidden_size).
            scale *= 0.5 if case.arch.startswith("gemma") and "embed_tokens" in name else 1.0
            packed = format_.quantize(noise * np.float32(scale))
            weights[name] = format_.dequantize(packed).reshape(shape)
        elif "norm" in name:
            centre = 0.0 if case.arch.startswith("gemma") else 1.0
            weights[name] = np.float32(centre) + np.float32(0.2) * noise
        else:
            weights[name] = np.float32(0.3) * noise
    return weights


def permuted(rows, num_heads):
    """Reorder the rows of q or k so that the pairs of a rotary embedding lie side by side."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def gguf_tensors(case, config, weights, llama3_divisors):
    """The file's tensors, as write_gguf wants them."""
    tensors = {}
    for name, original in weights.items():
        values = original
        if case.arch == "llama" and ("q_proj" in name or "k_proj" in name):
            values = permuted(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        if case.arch.startswith("gemma") and "norm" in name:
            values = values + np.float32(1)
        format_name = case.matrix_format if values.ndim == 2 else "F32"
        tensors[gguf_name(case, name)] = (format_name, values.shape, FORMATS[format_name].quantize(values))
    factors = {"rope_freqs.weight": llama3_divisors}
    if config.model_type == "phi3":
        factors["rope_factors_short.weight"] = config.rope_parameters["short_factor"]
        factors["rope_factors_long.weight"] = config.rope_parameters["long_factor"]
    for name, divisors in factors.items():
        if divisors is not None:
            values = np.array(divisors, np.float32)
            tensors[name] = ("F32", values.shape, FORMATS["F32"].quantize(values))
    return tensors


def gguf_metadata(case, config):
    """The file's header."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    has_two_ropes = config.model_type == "gemma3_text"
    partial = 1.0 if has_two_ropes else config.rope_parameters.get("partial_rotary_factor", 1.0)
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * partial),
        "vocab_size": config.vocab_size,
    }
    if not has_two_ropes:
        keys["rope.freq_base"] = config.rope_parameters["rope_theta"]
    keys.update(case.keys)
    header = {"general.architecture": case.arch, "general.name": f"tiny random {case.name}"}
    return {**header, **{f"{case.arch}.{key}": value for key, value in keys.items()}}


def generate(case, directory):
    """Write `<name>.gguf`, the folder `<name>` and `<name>.npz` (token_ids [T] int32, logits [T, V] float32)."""
    import torch  # noqa: PLC0415 - the tests import this file without it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - the tests import this file without it
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415 - the tests import this file without it

    sizes = {key: value for key, value in SIZES.items() if case.arch != "phi3" or key != "head_dim"}
    config = CONFIG_MAPPING[case.model_type](**{**sizes, **case.config})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    weights = draw_weights(case, shapes, CASES.index(case))
    loaded = model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    divisors = None
    if case.arch == "llama" and config.rope_parameters["rope_type"] == "llama3":
        dims = config.head_dim
        plain = config.rope_parameters["rope_theta"] ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
        divisors = plain / model.model.rotary_emb.inv_freq.double().numpy()
    token_ids = np.random.default_rng(7).integers(3, VOCAB_SIZE, PROMPT_LENGTH).astype(np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids.astype(np.int64))[None], use_cache=False).logits[0].numpy()
    directory.mkdir(parents=True, exist_ok=True)
    tensors = gguf_tensors(case, config, weights, divisors)
    write_gguf(directory / f"{case.name}.gguf", gguf_metadata(case, config), tensors)
    save_folder(case, model, directory / case.name)
    np.savez_compressed(directory / f"{case.name}.npz", token_ids=token_ids, logits=logits)


def save_folder(case, model, directory):
    """Write the model as transformers does, its matrices as the GGUF file has them."""
    import torch  # noqa: PLC0415 - the tests import this file without it

    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[case.matrix_format]
    state = {name: value.to(dtype) if value.ndim == 2 else value for name, value in model.state_dict().items()}
    model.save_pretrained(directory, state_dict=state)
    (directory / "generation_config.json").unlink()


def main(directory):
    """Generate every case."""
    import torch  # noqa: PLC0415 - the tests import this file without it
    import transformers  # noqa: PLC0415 - the tests import this file without it

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for case in CASES:
        generate(case, directory)
        print(f"{case.name}: {(directory / f'{case.name}.gguf').stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
