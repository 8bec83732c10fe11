"""Makes the reference data of the encoders' parity tests, as generate_reference.py does for decoders.

    PYTHONPATH=src python tests/parity/generate_encoders.py [DIRECTORY]

For each case it builds a transformers model with seeded random weights, writes it as the published converters do, and
records what it gives for some texts: the last hidden states, or the scores. Needs torch and transformers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from caudal.checkpoint.gguf_writer import write_gguf
from caudal.quant import FORMATS

DATA = Path(__file__).parent / "data"
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
LENGTHS = (1, 17, 40, 64)


@dataclass(frozen=True)
class Case:
    """One tiny encoder. `pooling_type` is GGUF's: 1 mean, 2 cls, 4 rank."""

    name: str
    kind: str
    pooling_type: int


CASES = (
    Case("bert", "BertModel", 2),
    Case("bert-reranker", "BertForSequenceClassification", 4),
    Case("roberta-reranker", "RobertaForSequenceClassification", 4),
    Case("nomic-bert", "NomicBertModel", 1),
)

NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
    "classifier": "cls.output",
}
LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}
NOMIC_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def gguf_name(name):
    """GGUF's name of a tensor of transformers' state dict."""
    name = name.removeprefix("bert.").removeprefix("roberta.")
    module, _, suffix = name.rpartition(".")
    if module.startswith(("encoder.layer.", "layers.")):
        index, inner = module.removeprefix("encoder.layer.").removeprefix("layers.").split(".", 1)
        return f"blk.{index}.{LAYER_NAMES[inner]}.{suffix}"
    return f"{NAMES[module]}.{suffix}"


def generate(case, directory):
    """Write `<name>.gguf` and `<name>.npz`: token_ids and outputs of every text, one after another, and lengths."""
    import torch  # noqa: PLC0415 - the tests import this file without it
    import transformers  # noqa: PLC0415 - the same

    is_roberta, is_nomic = case.kind.startswith("Roberta"), case.kind.startswith("Nomic")
    scores = "Classification" in case.kind
    # RoBERTa's first two positions are of padding; converters leave them out.
    sizes = SIZES | ({"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1} if is_roberta else {})
    family = "Roberta" if is_roberta else "NomicBert" if is_nomic else "Bert"
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(**sizes, num_labels=1, attn_implementation="eager")
    rng = np.random.default_rng([ord(letter) for letter in case.name])
    options = {} if scores else {"add_pooling_layer": False}
    model = getattr(transformers, case.kind)(config, **options).float().eval()
    weights = {}
    for name, value in model.state_dict().items():
        noise = rng.standard_normal(tuple(value.shape)).astype(np.float32)
        if "norm.weight" in name.lower():
            weights[name] = np.float32(1) + np.float32(0.2) * noise
        elif value.ndim == 2 and "embeddings" not in name:
            weights[name] = noise * np.float32(value.shape[-1] ** -0.5)
        else:
            weights[name] = np.float32(0.3) * noise
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    tensors = {}
    if is_nomic:  # whose files keep q, k and v as one matrix
        for index in range(config.num_hidden_layers):
            parts = [weights.pop(f"layers.{index}.{part}.weight") for part in NOMIC_QKV]
            fused = np.concatenate(parts)
            tensors[f"blk.{index}.attn_qkv.weight"] = ("F32", fused.shape, FORMATS["F32"].quantize(fused.reshape(-1)))
    for name, value in weights.items():
        kept = value[2:] if is_roberta and "position_embeddings" in name else value
        tensors[gguf_name(name)] = ("F32", kept.shape, FORMATS["F32"].quantize(kept.reshape(-1)))
    keys = {
        "context_length": 64,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "attention.causal": False,
        "pooling_type": case.pooling_type,
    }
    arch = "nomic-bert" if is_nomic else "bert"
    if is_nomic:
        keys["rope.freq_base"] = config.rope_parameters["rope_theta"]
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}
    write_gguf(directory / f"{case.name}.gguf", metadata, tensors)
    record(model, case, directory, rng)


def record(model, case, directory, rng):
    """Write what the model gives for some texts."""
    import torch  # noqa: PLC0415 - the tests import this file without it

    scores = "Classification" in case.kind
    texts = [rng.integers(2, SIZES["vocab_size"], length).astype(np.int32) for length in LENGTHS]
    outputs = []
    with torch.no_grad():
        for text in texts:
            result = model(torch.from_numpy(text.astype(np.int64))[None])
            outputs.append((result.logits if scores else result.last_hidden_state[0]).numpy())
    np.savez_compressed(
        directory / f"{case.name}.npz",
        token_ids=np.concatenate(texts),
        lengths=np.array(LENGTHS, np.int32),
        outputs=np.concatenate(outputs).astype(np.float32),
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    target.mkdir(parents=True, exist_ok=True)
    for each in CASES:
        generate(each, target)
