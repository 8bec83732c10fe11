from __future__ import annotations

import math

import pytest
from factory import tiny_checkpoint

from caudal.checkpoint import open_checkpoint
from caudal.server.model_facts import ModelFacts, model_facts


@pytest.fixture
def path(tmp_path):
    return tiny_checkpoint(tmp_path, arch="qwen2", scheme="Q4_K_M")


def test_facts_of_a_file(path):
    with open_checkpoint(path) as checkpoint:
        facts = model_facts(checkpoint)
        num_parameters = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
        assert facts.size_bytes == checkpoint.total_tensor_bytes
    assert facts.file_name == path.name
    assert (facts.architecture, facts.context_length, facts.vocab_size) == ("qwen2", 512, 320)
    assert (facts.num_parameters, facts.hidden_size) == (num_parameters, 256)
    assert facts.quantization
    assert facts.modified_ns == path.stat().st_mtime_ns
    assert "im_start" in facts.chat_template
    assert not facts.fills_in_the_middle
    assert len(facts.digest) == 64
    assert int(facts.digest, 16) > 0
    assert facts.metadata["general.architecture"] == "qwen2"
    assert not any(isinstance(value, list) for value in facts.metadata.values())
    assert str(path.parent) not in str(facts)


class Odd:
    """A file whose metadata makes no sense."""

    def __init__(self, path, **metadata):
        self.path = path
        self.metadata = {key.replace("_", ".", 1): value for key, value in metadata.items()}
        self.container = "gguf"
        self.stored = {}
        self.total_tensor_bytes = 0

    def identity(self):
        return "x"


def test_metadata_that_makes_no_sense_counts_as_absent(tmp_path):
    odd = Odd(
        tmp_path / "gone.gguf",
        general_architecture=3,
        general_file_type="big",
        tokenizer_chat_template=[1],
        x_inf=math.inf,
        x_long="y" * 10_000,
        x_flag=True,
    )
    facts = model_facts(odd)
    assert (facts.architecture, facts.quantization, facts.chat_template, facts.modified_ns) == ("", "", "", 0)
    assert facts.metadata == {"general.architecture": 3, "general.file_type": "big", "x.flag": True}


def test_nothing_is_known_by_default():
    assert ModelFacts().digest == "0" * 64
