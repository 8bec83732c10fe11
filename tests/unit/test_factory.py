"""The tiny models that other tests load are what they say."""

import pytest
from factory import ARCHITECTURES, K_FORMATS, VOCAB_SIZE, tiny_checkpoint, tiny_config

from caudal.checkpoint import open_checkpoint
from caudal.quant import FORMATS


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(tmp_path, arch):
    model = open_checkpoint(tiny_checkpoint(tmp_path, arch))
    config = tiny_config(arch)
    assert model.metadata["general.architecture"] == arch
    assert model.metadata[f"{arch}.block_count"] == config.num_layers
    assert ("output.weight" in model.tensors) is not config.tied
    assert model.tensors["token_embd.weight"].shape == (VOCAB_SIZE, config.hidden_size)
    assert len(set(model.metadata["tokenizer.ggml.tokens"])) == VOCAB_SIZE


@pytest.mark.parametrize("scheme", [*FORMATS, "Q4_K_M"])
def test_every_scheme(tmp_path, scheme):
    model = open_checkpoint(tiny_checkpoint(tmp_path, scheme=scheme, num_layers=1))
    formats = {tensor.format for tensor in model.tensors.values() if len(tensor.shape) > 1}
    assert formats == ({"Q4_K", "Q6_K"} if scheme == "Q4_K_M" else {scheme})
    assert (scheme in K_FORMATS) == (model.metadata["llama.embedding_length"] == 256)


def test_the_seed_decides_the_weights(tmp_path):
    files = [
        tiny_checkpoint(tmp_path / f"{index}.gguf", seed=seed).read_bytes() for index, seed in enumerate((1, 1, 2))
    ]
    assert files[0] == files[1] != files[2]


def test_overrides_and_metadata(tmp_path):
    path = tiny_checkpoint(
        tmp_path, num_layers=1, rope_factors=True, metadata={"general.name": None, "llama.vocab_size": 5}
    )
    model = open_checkpoint(path)
    assert model.tensors["rope_freqs.weight"].shape == (8,)
    assert "blk.1.attn_norm.weight" not in model.tensors
    assert "general.name" not in model.metadata
    assert model.metadata["llama.vocab_size"] == 5


def test_every_merge_joins_tokens_that_exist(tmp_path):
    metadata = open_checkpoint(tiny_checkpoint(tmp_path)).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    for rank, merge in enumerate(metadata["tokenizer.ggml.merges"]):
        left, right = merge.split(" ")
        made = tokens.index(left + right)
        assert max(tokens.index(left), tokens.index(right)) < made == 259 + rank
