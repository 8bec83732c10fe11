"""Writes models as Hugging Face folders: safetensors files, and folders made of GGUF models."""

import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from caudal.checkpoint import open_checkpoint
from caudal.quant import FORMATS
from caudal.tokenizer.token_types import CONTROL

CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
MODEL_TYPES = {"gemma3": "gemma3_text"}


def write_safetensors(path, arrays):
    """Write name -> (dtype, shape, bytes)."""
    header, start = {}, 0
    for name, (dtype, shape, data) in arrays.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + len(data)]}
        start += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(bytes(data) for _, _, data in arrays.values())
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + body)


def unpermuted(rows, num_heads):
    """Undo the order that rotates neighbours: halves of each head again, as transformers has them."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def folder_of_gguf(source, folder, dtype="F32", **config):
    """Write a GGUF model, dequantised, as a folder of one safetensors file, and return the folder.

    Args:
        source: the GGUF file of a llama, qwen, gemma or phi model with plain ropes and byte-level BPE.
        folder: made if need be.
        dtype: of all matrices.
        config: keys to add to config.json or to replace.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open_checkpoint(source) as checkpoint:
        keys = checkpoint.metadata
        arch = keys["general.architecture"]
        names = {**NAMES, **(GEMMA_NAMES if arch.startswith("gemma") else {})}
        if arch == "phi3":
            names["ffn_up"] = "mlp.gate_up_proj"
        arrays = {}
        for name, tensor in checkpoint.tensors.items():
            stored, values = hf_tensor(name, tensor.dequantize(), arch, keys, names)
            kind = dtype if values.ndim == 2 else "F32"
            arrays[stored] = (kind, values.shape, FORMATS[kind].quantize(values.reshape(-1)).tobytes())
        tied = "output.weight" not in checkpoint.tensors
        write_config(folder, arch, keys, {"tie_word_embeddings": tied, **config})
        write_tokenizer(folder, keys)
    write_safetensors(folder / "model.safetensors", arrays)
    return folder


def hf_tensor(name, values, arch, keys, names):
    """Return a tensor's name in transformers, and its values there."""
    if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = keys["llama.attention.head_count" if ".attn_q." in name else "llama.attention.head_count_kv"]
        values = unpermuted(values, heads)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        values = values - np.float32(1)
    module, _, kind = name.rpartition(".")
    if module in TOP_NAMES:
        return f"{TOP_NAMES[module]}.{kind}", values
    _, index, inner = module.split(".", 2)
    return f"model.layers.{index}.{names[inner]}.{kind}", values


def write_config(folder, arch, keys, more):
    found = {theirs: keys[f"{arch}.{ours}"] for ours, theirs in CONFIG_KEYS.items() if f"{arch}.{ours}" in keys}
    config = {
        "architectures": [f"{arch.capitalize()}ForCausalLM"],
        "model_type": MODEL_TYPES.get(arch, arch),
        "vocab_size": len(keys["tokenizer.ggml.tokens"]),
        "bos_token_id": keys.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": keys.get("tokenizer.ggml.eos_token_id"),
        **found,
    }
    if arch.startswith("gemma"):
        config["query_pre_attn_scalar"] = found["head_dim"]
    (folder / "config.json").write_text(json.dumps(config | more, indent=2))


def write_tokenizer(folder, keys):
    """Write tokenizer.json and tokenizer_config.json of a byte-level BPE vocabulary."""
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    control = [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    vocab = {text: token_id for token_id, text in enumerate(tokens) if text not in set(control)}
    merges = [tuple(rule.split(" ", 1)) for rule in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab | {t: tokens.index(t) for t in control}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pre_tokenizer_steps(keys.get("tokenizer.ggml.pre")))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    settings = json.loads(tokenizer.to_str())
    for text in control:  # published files list them as added tokens alone
        del settings["model"]["vocab"][text]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    bos, eos = (keys.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if bos is None else tokens[bos],
        "eos_token": None if eos is None else {"content": tokens[eos], "special": True},
        "chat_template": keys.get("tokenizer.chat_template"),
        "add_bos_token": bool(keys.get("tokenizer.ggml.add_bos_token", False)),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def pre_tokenizer_steps(pre):
    """The splits of the vocabularies that tests use."""
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    return [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


def sentencepiece_settings(*, prepend=True):
    """Return what tokenizer.json says of a SentencePiece BPE as Llama 2 has it, with five words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "h", "i", "\u2581h", "\u2581hi"]
    vocab = {text: token_id for token_id, text in enumerate(tokens)}
    merges = [("\u2581", "h"), ("\u2581h", "i")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    prefix = [normalizers.Prepend("\u2581")] if prepend else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if prepend else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return json.loads(tokenizer.to_str())
