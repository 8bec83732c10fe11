"""Writes tiny random models as real GGUF files, one call each.

    path = tiny_checkpoint(tmp_path, arch="qwen3", scheme="Q4_K_M", seed=1, num_layers=3)

The tokenizer is byte-level BPE with 320 tokens: 0-2 are <|endoftext|>, <|im_start|> and <|im_end|> (the end of a
turn), 3-258 the bytes, 259-319 merges that English text uses. The chat template is ChatML.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from caudal.checkpoint.gguf_writer import write_gguf
from caudal.quant import FORMATS

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
K_FORMATS = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q4_K_M"}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 320
MERGED_WORDS = "the and ing er on at or en is it of to in that was for with you hello world answer question"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of a tiny model. `rope_factors` adds the tensor with which llama 3 scales its rope."""

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_size: int = 96
    context_length: int = 512
    rope_theta: float = 10000.0
    sliding_window: int | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    tied: bool = False
    rope_factors: bool = False


PRESETS = {
    "llama": TinyConfig(),
    "qwen2": TinyConfig(tied=True, rope_theta=1e6),
    "qwen3": TinyConfig(tied=True, rope_theta=1e6),
    "gemma2": TinyConfig(tied=True, sliding_window=16, attention_softcap=50.0, final_softcap=30.0),
    # Six layers, because the sixth is the first that attends to everything.
    "gemma3": TinyConfig(tied=True, sliding_window=16, rope_theta=1e6, num_layers=6, num_kv_heads=1),
    "phi3": TinyConfig(),
    "gemma-embedding": TinyConfig(tied=True, sliding_window=16, rope_theta=1e6, num_layers=6, num_kv_heads=1),
}


def tiny_config(arch="llama", scheme="F32", **overrides):
    """Return the sizes that tiny_checkpoint uses; K formats need rows of whole super-blocks."""
    wide = {"hidden_size": 256, "head_dim": 64, "ffn_size": 256} if scheme in K_FORMATS else {}
    return replace(PRESETS[arch], **{**wide, **overrides})


def tiny_checkpoint(path, arch="llama", scheme="F32", seed=0, metadata=None, **overrides):
    """Write a tiny random model and return the path of its file.

    Args:
        path: the file, or a directory in which it is named after its architecture and scheme.
        arch: one of ARCHITECTURES, or "gemma-embedding", which writes no text.
        scheme: format of all matrices, or "Q4_K_M", which is Q4_K with Q6_K for attn_v and ffn_down.
        seed: of the weights. The same seed gives the same values before they are quantised.
        metadata: keys to add or replace; a value of None removes the key.
        **overrides: fields of TinyConfig.
    """
    path = Path(path)
    if path.is_dir():
        path = path / f"tiny-{arch}-{scheme}.gguf"
    config = tiny_config(arch, scheme, **overrides)
    keys = {**model_keys(arch, config), **tokenizer_keys(), **(metadata or {})}
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(arch, config).items():
        values = random_values(rng, name, shape)
        format_name = "F32" if len(shape) == 1 else format_for(scheme, name)
        tensors[name] = (format_name, shape, FORMATS[format_name].quantize(values.reshape(-1)))
    write_gguf(path, {key: value for key, value in keys.items() if value is not None}, tensors)
    return path


def format_for(scheme, name):
    if scheme != "Q4_K_M":
        return scheme
    return "Q6_K" if "attn_v" in name or "ffn_down" in name else "Q4_K"


def random_values(rng, name, shape):
    noise = rng.standard_normal(shape).astype(np.float32)
    if name == "rope_freqs.weight":
        return np.linspace(1, 8, shape[0], dtype=np.float32)
    if name.endswith("norm.weight"):
        return 1 + noise / 10
    if name.endswith(".bias"):
        return noise / 10
    # Embeddings small enough that layers, not the tied head, decide the next token.
    return noise * np.float32(0.1 if name == "token_embd.weight" else 2 / np.sqrt(shape[-1]))


def model_keys(arch, config):
    keys = {
        "vocab_size": VOCAB_SIZE,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.ffn_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_theta,
    }
    optional = {
        "attention.sliding_window": config.sliding_window,
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.final_softcap,
    }
    keys |= {key: value for key, value in optional.items() if value is not None}
    general = {"general.architecture": arch, "general.name": f"Tiny {arch}", "general.quantization_version": 2}
    return {**general, **{f"{arch}.{key}": value for key, value in keys.items()}}


def tensor_shapes(arch, config):
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"token_embd.weight": (VOCAB_SIZE, hidden), "output_norm.weight": (hidden,)}
    if not config.tied:
        shapes["output.weight"] = (VOCAB_SIZE, hidden)
    if config.rope_factors:
        shapes["rope_freqs.weight"] = (config.head_dim // 2,)
    layer = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    if arch == "phi3":
        layer["attn_qkv.weight"] = (q_size + 2 * kv_size, hidden)
        layer["ffn_up.weight"] = (2 * ffn, hidden)
    else:
        sizes = {"attn_q": q_size, "attn_k": kv_size, "attn_v": kv_size}
        layer |= {f"{part}.weight": (size, hidden) for part, size in sizes.items()}
        if arch == "qwen2":
            layer |= {f"{part}.bias": (size,) for part, size in sizes.items()}
        layer |= {"ffn_gate.weight": (ffn, hidden), "ffn_up.weight": (ffn, hidden)}
    if arch in {"qwen3", "gemma3", "gemma-embedding"}:
        layer |= {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}
    if arch in {"gemma2", "gemma3", "gemma-embedding"}:
        layer |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    layer |= {"attn_output.weight": (hidden, q_size), "ffn_down.weight": (hidden, ffn)}
    for index in range(config.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def byte_letters():
    """Return the 256 letters by which byte-level BPE writes bytes: printable ones themselves, others from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def bpe_merges(count):
    """Return `count` merges that build MERGED_WORDS from left to right, with and without a space before them."""
    letters = byte_letters()
    merges = {}
    for word in [f" {word}" for word in MERGED_WORDS.split()] + MERGED_WORDS.split():
        pieces = [letters[byte] for byte in word.encode()]
        for end in range(1, len(pieces)):
            left = "".join(pieces[:end])
            merges.setdefault(left + pieces[end], f"{left} {pieces[end]}")
    return dict(list(merges.items())[:count])


def tokenizer_keys():
    merges = bpe_merges(VOCAB_SIZE - 256 - len(SPECIAL_TOKENS))
    tokens = [*SPECIAL_TOKENS, *byte_letters(), *merges]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": np.array([3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)), dtype=np.int32),
        "merges": list(merges.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 0,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | {"tokenizer.chat_template": CHAT_TEMPLATE}
