"""Makes the reference data of EmbeddingGemma's parity tests, as generate_reference.py does for decoders.

    PYTHONPATH=src python tests/parity/generate_gemma_embedding.py [DIRECTORY]

The model is transformers' Gemma 3 with attention that sees both ways, and behind it the two Dense modules of
sentence-transformers (https://sbert.net/docs/package_reference/sentence_transformer/models.html): no bias and the
identity as activation. As they are linear, what they give for the mean of a text's rows is the mean of what they give
for each, so their rows are recorded, and any pooling can be checked. Needs torch and transformers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from generate_reference import DATA, GEMMA, SIZES, VOCAB_SIZE, WINDOW, Case, draw_weights, gguf_metadata, gguf_tensors

from caudal.checkpoint.gguf_writer import write_gguf
from caudal.quant import FORMATS

CONTEXT_LENGTH = 512
LENGTHS = (1, 6, 17, 40, 300)  # the last has more tokens than attention takes at once, 256
DENSE = {"dense_2": (48, SIZES["hidden_size"]), "dense_3": (40, 48)}

# Six layers, because the sixth is the first that attends to everything. Files do not name the pattern, and may name the
# local theta.
CASE = Case(
    "gemma-embedding",
    "gemma3_text",
    "gemma-embedding",
    {
        **GEMMA,
        "intermediate_size": 32,
        "num_hidden_layers": 6,
        "max_position_embeddings": CONTEXT_LENGTH,
        "use_bidirectional_attention": True,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    },
    {
        # As in config.json. Transformers makes distances below WINDOW // 2 + 1 of it.
        "attention.sliding_window": WINDOW,
        "rope.freq_base": 1e6,
        "pooling_type": 1,
        **{f"{name}_feat_out": rows for name, (rows, _) in DENSE.items()},
        **{f"{name}_feat_in": columns for name, (_, columns) in DENSE.items()},
    },
)


def draw_dense(rng):
    """Weights of the Dense modules, rounded to the format in which the file holds them."""
    format_ = FORMATS[CASE.matrix_format]
    drawn = {}
    for name, (rows, columns) in DENSE.items():
        noise = rng.standard_normal((rows, columns)).astype(np.float32) * np.float32(columns**-0.5)
        drawn[name] = format_.dequantize(format_.quantize(noise.reshape(-1))).reshape(rows, columns)
    return drawn


def generate(directory):
    """Write the model and, of some texts: token_ids and rows one after another, and lengths."""
    import torch  # noqa: PLC0415 - the tests import this file without it
    import transformers  # noqa: PLC0415 - the same

    config = transformers.Gemma3TextConfig(**{**SIZES, **CASE.config}, attn_implementation="eager")
    assert config.sliding_window == WINDOW // 2 + 1
    model = transformers.Gemma3TextModel(config).float().eval()
    shapes = {f"model.{name}": tuple(value.shape) for name, value in model.state_dict().items()}
    weights = draw_weights(CASE, shapes, 100)
    model.load_state_dict({name.removeprefix("model."): torch.from_numpy(value) for name, value in weights.items()})
    rng = np.random.default_rng(8)
    dense = draw_dense(rng)
    tensors = gguf_tensors(CASE, config, weights, None)
    for name, values in dense.items():
        packed = FORMATS[CASE.matrix_format].quantize(values.reshape(-1))
        tensors[f"{name}.weight"] = (CASE.matrix_format, values.shape, packed)
    write_gguf(directory / f"{CASE.name}.gguf", gguf_metadata(CASE, config), tensors)
    texts = [rng.integers(3, VOCAB_SIZE, length).astype(np.int32) for length in LENGTHS]
    rows = []
    with torch.no_grad():
        for text in texts:
            x = model(torch.from_numpy(text.astype(np.int64))[None], use_cache=False).last_hidden_state[0]
            for values in dense.values():
                x = torch.nn.functional.linear(x, torch.from_numpy(values))
            rows.append(x.numpy())
    np.savez_compressed(
        directory / f"{CASE.name}.npz",
        token_ids=np.concatenate(texts),
        lengths=np.array(LENGTHS, np.int32),
        outputs=np.concatenate(rows),
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    target.mkdir(parents=True, exist_ok=True)
    generate(target)
