"""Hugging Face folders: read like the GGUF file of the same model, and refused by name when they are wrong."""

import json

import pytest
from factory import tiny_checkpoint
from hf_folders import folder_of_gguf, sentencepiece_settings, write_safetensors

from caudal import LLM, SamplingParams
from caudal.checkpoint import open_checkpoint
from caudal.errors import (
    CheckpointError,
    LibraryError,
    MissingTensor,
    UnsupportedArchitecture,
    UnsupportedFormat,
    UnusedTensors,
)
from caudal.hub.model_files import ModelFiles
from caudal.hub.model_library import ModelLibrary
from caudal.hub.resolve import plain_name, resolve
from caudal.models.hf_models import HF_MODELS, find_hf_model
from caudal.tokenizer.load import load_tokenizer

TEXT = "Hello <|im_end|> world, 12345 números\n\tand the 日本 end"


@pytest.fixture
def folder(tmp_path):
    return folder_of_gguf(tiny_checkpoint(tmp_path), tmp_path / "tiny-1.5")


def changed(folder, name="config.json", **keys):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def load(folder):
    return LLM(folder, exact=True, num_threads=1, kv_cache_bytes=1 << 22)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_the_same_text_as_the_gguf_file(arch, tmp_path):
    source = tiny_checkpoint(tmp_path, arch)
    with load(source) as one, load(folder_of_gguf(source, tmp_path / "folder")) as other:
        texts = [
            [
                output.token_ids
                for output in llm.generate(["Hello world", "the"], SamplingParams(max_tokens=24, temperature=0))
            ]
            for llm in (one, other)
        ]
    assert texts[0] == texts[1]


def test_the_tokenizer_is_that_of_the_gguf_file(folder, tmp_path):
    with open_checkpoint(tiny_checkpoint(tmp_path)) as gguf, open_checkpoint(folder) as ours:
        one, other = load_tokenizer(gguf), load_tokenizer(ours)
    chat = [{"role": "user", "content": TEXT}]
    for parse in (True, False):
        assert one.encode(TEXT, parse_special=parse) == other.encode(TEXT, parse_special=parse)
    assert one.encode_chat(chat) == other.encode_chat(chat)
    assert other.encode_chat(chat).count(2) == 1  # the end of a turn, not the text of it
    assert one.eos_token_ids == other.eos_token_ids
    assert (one.bos_token, one.eos_token, one.vocab_size) == (other.bos_token, other.eos_token, other.vocab_size)
    ids = one.encode(TEXT)
    assert one.decode(ids) == other.decode(ids) == TEXT
    assert [one.token_bytes(i) for i in range(320)] == [other.token_bytes(i) for i in range(320)]


def test_a_sentencepiece_tokenizer(folder):
    (folder / "tokenizer.json").write_text(json.dumps(sentencepiece_settings()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    changed(folder, bos_token_id=1, eos_token_id=[2])
    with open_checkpoint(folder) as checkpoint:
        tokenizer = load_tokenizer(checkpoint)
    ids = tokenizer.encode("hi hi</s>é")
    assert ids[0] == 1
    assert 2 not in ids
    assert tokenizer.encode("</s>", parse_special=True)[-1] == 2
    assert tokenizer.decode(ids) == "hi hi</s>é"
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 320
    assert tokenizer.token_text(319) == "[PAD319]"


def test_shards_and_their_index(folder, tmp_path):
    with open_checkpoint(folder) as checkpoint:
        arrays = {name: (a.dtype, a.shape, a.data.tobytes()) for name, a in checkpoint.arrays.items()}
    (folder / "model.safetensors").unlink()
    halves = {"a.safetensors": dict(list(arrays.items())[:5]), "b.safetensors": dict(list(arrays.items())[5:])}
    for name, part in halves.items():
        write_safetensors(folder / name, part)
    with pytest.raises(CheckpointError, match=r"2 \.safetensors files .* and no model\.safetensors\.index\.json"):
        open_checkpoint(folder)
    index = {"weight_map": {tensor: name for name, part in halves.items() for tensor in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with load(folder) as llm:
        llm.generate(["Hello"], SamplingParams(max_tokens=2))
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard b\.safetensors is missing, which holds \d+ tensors"):
        open_checkpoint(folder)
    index["weight_map"]["x"] = "../b.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'x' should be in '\.\./b\.safetensors'"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"model_type": "mamba"}, UnsupportedArchitecture, r"model_type 'mamba'.*expected one of llama, mistral"),
        ({"model_type": None}, CheckpointError, "model_type"),
        ({"hidden_size": 128}, CheckpointError, r"model\.embed_tokens\.weight' has shape \(320, 64\).*\(320, 128\)"),
        ({"vocab_size": 321}, CheckpointError, r"embed_tokens\.weight' has shape \(320, 64\).*\(321, 64\)"),
        ({"num_hidden_layers": 3}, MissingTensor, r"model\.layers\.2\."),
        ({"num_hidden_layers": 1}, UnusedTensors, r"model\.layers\.1\."),
        ({"num_hidden_layers": -1}, CheckpointError, "num_hidden_layers is -1"),
        ({"num_key_value_heads": 3}, CheckpointError, "num_key_value_heads is 3; expected a divisor"),
        ({"hidden_act": "relu"}, CheckpointError, "hidden_act is 'relu'"),
        ({"rope_scaling": {"rope_type": "odd"}}, UnsupportedArchitecture, "rope_type is 'odd'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, CheckpointError, "factor is 0"),
        ({"rope_theta": "many"}, CheckpointError, "rope_theta"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedFormat, r"quantised \(awq\)"),
        ({"tie_word_embeddings": True, "use_bidirectional_attention": True}, UnsupportedArchitecture, "bidirectional"),
    ],
)
def test_a_configuration_that_is_wrong(folder, keys, error, words):
    with pytest.raises(error, match=words):
        load(changed(folder, **keys))


def test_a_head_that_should_be_there(tmp_path):
    folder = folder_of_gguf(tiny_checkpoint(tmp_path, "qwen3"), tmp_path / "f", tie_word_embeddings=False)
    with pytest.raises(MissingTensor, match=r"lm_head\.weight"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokenizer.json", "holds no tokenizer.json"),
        ("config.json", "holds no config.json"),
        ("model.safetensors", r"holds no \.safetensors file"),
    ],
)
def test_a_file_that_is_missing(folder, name, words):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=words):
        load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '"\xff"'])
def test_a_file_that_is_no_json(folder, name, text):
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=name):
        load(folder)


def test_pickles_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="convert the model to safetensors"):
        load(folder)


def test_a_folder_has_a_name_and_is_listed(folder, tmp_path):
    assert resolve(str(folder)) == folder
    assert plain_name(folder) == "tiny-1.5"
    listed = {file.name: file for file in ModelFiles([], tmp_path).look()}
    assert set(listed) == {"tiny-1.5", "tiny-llama-F32"}
    assert listed["tiny-1.5"].facts.context_length == 512
    assert listed["tiny-1.5"].facts.kv_bytes_per_token == listed["tiny-llama-F32"].facts.kv_bytes_per_token
    assert listed["tiny-1.5"].size_bytes > 0


def test_clients_cannot_change_a_folder(folder, tmp_path):
    library = ModelLibrary(tmp_path, {})
    with pytest.raises(LibraryError, match="folder of safetensors"):
        library.delete(folder.name, folder)
    with pytest.raises(LibraryError, match="folder of safetensors"):
        library.copy(folder.name, folder, "other")
    assert (folder / "model.safetensors").is_file()


def test_every_model_type_has_an_architecture():
    assert all(find_hf_model(name).row.name for name in HF_MODELS)
