"""Tokenizers from GGUF metadata: published vectors, options, errors, the cache of merge rules."""

import random

import pytest
from tokenizers import Regex, decoders
from vocabularies import (
    UNUSED,
    USER_DEFINED,
    VOCAB_FILES,
    byte_level,
    files_or_skip,
    metadata_of,
    real_model,
    sentencepiece,
    tokenizer_of,
)

from caudal.errors import CheckpointError, InvalidParameter, UnsupportedFormat
from caudal.tokenizer import spm_merges
from caudal.tokenizer.from_gguf import load_gguf_tokenizer
from caudal.tokenizer.pre_tokenizers import find_pre_tokenizer, read_table


def vectors(path):
    texts = path.with_name(path.name + ".inp").read_bytes().decode()
    rows = path.with_name(path.name + ".out").read_text().split("\n")
    pairs = zip(texts.split("\n__ggml_vocab_test__\n"), rows, strict=True)
    return [(text, [int(i) for i in row.split()]) for text, row in pairs]


@pytest.mark.parametrize("path", files_or_skip(VOCAB_FILES, "vocabularies"))
def test_published_vectors(path, monkeypatch, tmp_path):
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path))
    tokenizer = tokenizer_of(path)
    for text, expected in vectors(path):
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=True) == expected, text
        if "bert" not in path.name:
            assert tokenizer.decode(expected) == text


@pytest.mark.parametrize("path", files_or_skip(VOCAB_FILES, "vocabularies"))
def test_decode_equals_the_library_on_valid_text(path):
    """Our own decoding against the `tokenizers` library with the decoder that model files carry for each kind."""
    if "bert" in path.name:
        pytest.skip("the library joins words for people to read; ours gives what was stored")
    tokenizer = tokenizer_of(path)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    is_spm = metadata_of(path)["tokenizer.ggml.model"] == "llama"
    library = tokenizer._encoder._parsing
    library.decoder = decoders.Sequence(steps) if is_spm else decoders.ByteLevel()
    for _, ids in vectors(path):
        assert tokenizer.decode(ids) == library.decode(ids)


def test_no_control_token_from_plain_text():
    tokenizer = load_gguf_tokenizer(byte_level())
    text = "hello<|im_start|>hello"
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    parsed = tokenizer.encode(text, parse_special=True)
    assert [tokenizer.token_text(i) for i in parsed] == ["hello", "<|im_start|>", "hello"]
    assert tokenizer.decode(parsed) == "hellohello"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == text


def test_no_control_token_from_merges_or_whole_words():
    """Files can hold merge rules, or words taken whole, that spell a control token."""
    metadata = byte_level(pre="llama-bpe", control=("he!", "xyz"), ggml__bos_token_id=10)
    metadata["tokenizer.ggml.merges"] += ["x y", "xy z", "he !"]
    tokenizer = load_gguf_tokenizer(metadata)
    for text in ("xyz", "he!", " xyz xyz", "axyz", "xyzxyz"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.special_ids.isdisjoint(ids), text
        assert tokenizer.decode(ids) == text


def test_sentencepiece_never_merges_into_a_control_token():
    tokenizer = load_gguf_tokenizer(sentencepiece())
    ids = tokenizer.encode("hello <s></s>")
    assert ids[0] == 1
    assert tokenizer.special_ids.isdisjoint(ids[1:])
    assert tokenizer.decode(ids) == "hello <s></s>"
    assert tokenizer.token_text(ids[1]) == "\u2581hello"


def test_visible_added_tokens_are_found_in_plain_text():
    tokenizer = load_gguf_tokenizer(byte_level())
    assert "<tool>" in [tokenizer.token_text(i) for i in tokenizer.encode("hello<tool>")]


def test_bos_is_added_once():
    tokenizer = load_gguf_tokenizer(sentencepiece(ggml__add_eos_token=True))
    assert tokenizer.encode("hello", parse_special=True)[:1] == [1]
    assert tokenizer.encode("<s>hello", parse_special=True).count(1) == 1
    assert tokenizer.encode("hello</s>", parse_special=True).count(2) == 1
    assert tokenizer.encode("") == [1, 2]
    assert tokenizer.encode("hello", add_special_tokens=False)[0] != 1
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_add_bos_comes_from_the_pre_tokenizer_when_the_file_is_silent():
    assert load_gguf_tokenizer(byte_level(pre="llama-bpe", ggml__bos_token_id=5)).encode("hello")[0] == 5
    assert load_gguf_tokenizer(byte_level(pre="gpt-2", ggml__bos_token_id=5)).encode("hello")[0] != 5
    silent = byte_level(pre="llama-bpe", ggml__bos_token_id=5, ggml__add_bos_token=False)
    assert load_gguf_tokenizer(silent).encode("hello")[0] != 5


def test_stop_set_rules():
    def stops(control, **more):
        tokenizer = load_gguf_tokenizer(byte_level(control=control, **more))
        return {tokenizer.token_text(i) for i in tokenizer.eos_token_ids}

    assert stops(("<|im_end|>", "<|eot_id|>", "<|other|>")) == {"<|im_end|>", "<|eot_id|>"}
    assert stops(("<|end|>",)) == {"<|end|>"}
    assert stops(("<|end|>", "<|return|>", "<|call|>")) == {"<|return|>", "<|call|>"}
    assert stops(("</s>",)) == {"</s>"}
    assert stops(("</s>", "<|tool_response>")) == {"<|tool_response>"}
    assert stops(("<x>",), ggml__eos_token_id=262) == {"<x>"}
    assert stops(("<x>", "<y>"), ggml__eot_token_id=263) == {"<y>"}


def test_stop_text_of_another_type():
    """A visible "</s>" is HTML; a visible "<|im_end|>" is a stop token that the converter mistyped."""
    metadata = byte_level(control=("</s>", "<|im_end|>"))
    metadata["tokenizer.ggml.token_type"][-2:] = [USER_DEFINED, USER_DEFINED]
    tokenizer = load_gguf_tokenizer(metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.eos_token_ids] == ["<|im_end|>"]
    assert tokenizer.special_ids == set(tokenizer.eos_token_ids)
    metadata["tokenizer.ggml.token_type"][-2:] = [UNUSED, UNUSED]
    assert load_gguf_tokenizer(metadata).eos_token_ids == ()


def test_half_surrogates_and_odd_texts():
    tokenizer = load_gguf_tokenizer(byte_level())
    assert tokenizer.decode(tokenizer.encode("a\ud800b\x00")) == "a\ufffdb\x00"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "\U0001f600"
    assert tokenizer.encode("") == []


def test_ids_out_of_range():
    tokenizer = load_gguf_tokenizer(byte_level())
    for bad in (-1, tokenizer.vocab_size):
        for ask in (tokenizer.token_bytes, tokenizer.token_text, lambda i: tokenizer.decode([i])):
            with pytest.raises(InvalidParameter, match="out of range"):
                ask(bad)


def test_token_bytes():
    tokenizer = load_gguf_tokenizer(byte_level())
    assert tokenizer.token_bytes(tokenizer.encode(" w")[0]) == b" w"
    assert b"".join(map(tokenizer.token_bytes, range(256))) == bytes(
        [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x21), *range(0x7F, 0xA1), 0xAD]
    )
    spm = load_gguf_tokenizer(sentencepiece())
    assert [spm.token_bytes(i) for i in (1, 3, 258, 259)] == [b"<s>", b"\x00", b"\xff", b" "]


def test_long_texts_take_linear_time():
    """A megabyte of one letter was once a quadratic search."""
    for metadata in (byte_level(), sentencepiece()):
        tokenizer = load_gguf_tokenizer(metadata)
        for text in ("h" * 1_000_000, "hello w" * 20_000):
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedFormat, "'rwkv'.*gpt2, gemma4, llama and bert"),
        ({"tokenizer.ggml.pre": "surprise"}, UnsupportedFormat, "'surprise'.*newer Caudal.*Known names: .*qwen2"),
        ({"tokenizer.ggml.pre": "kimi-k2"}, UnsupportedFormat, "'kimi-k2'"),
        ({"tokenizer.ggml.model": None}, CheckpointError, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.tokens": None}, CheckpointError, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": []}, CheckpointError, "tokenizer.ggml.tokens is missing or empty"),
        ({"tokenizer.ggml.tokens": "abc"}, CheckpointError, "tokens is str; expected an array"),
        ({"tokenizer.ggml.tokens": ["a", 1]}, CheckpointError, "tokens holds int; expected only str"),
        ({"tokenizer.ggml.token_type": [1]}, CheckpointError, "token_type has 1 values, but there are 264 tokens"),
        ({"tokenizer.ggml.merges": None}, CheckpointError, "merges is missing"),
        ({"tokenizer.ggml.merges": ["ab"]}, CheckpointError, "merges holds 'ab'"),
        ({"tokenizer.ggml.model": "llama"}, CheckpointError, "scores is missing"),
        ({"tokenizer.ggml.bos_token_id": 9999}, CheckpointError, "bos_token_id is 9999, but there are 264 tokens"),
        ({"tokenizer.ggml.eos_token_id": "x"}, CheckpointError, "eos_token_id is str 'x'; expected int"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, CheckpointError, "add_bos_token is 'yes'; expected a bool"),
        ({"tokenizer.chat_template": 3}, CheckpointError, "chat_template is int"),
    ],
)
def test_metadata_that_cannot_be_used(change, error, words):
    metadata = {**byte_level(), **change}
    with pytest.raises(error, match=f"^model.gguf: .*{words}"):
        load_gguf_tokenizer(metadata, path="model.gguf")


def test_missing_pre_tokenizer_is_said(caplog):
    metadata = byte_level()
    del metadata["tokenizer.ggml.pre"]
    load_gguf_tokenizer(metadata, path="model.gguf")
    assert "no tokenizer.ggml.pre" in caplog.text


def test_every_pre_tokenizer_compiles():
    table = read_table()
    assert len(table.names) > 80
    for name in table.names:
        for regex in find_pre_tokenizer(name).regexes:
            Regex(regex)


def large_sentencepiece():
    """Over the size at which rules are cached: words of two and three letters."""
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 100)]
    words = [a + b for a in letters for b in letters] + [a + b + a for a in letters[:20] for b in letters[:20]]
    metadata = sentencepiece()
    scores = random.Random(5)
    metadata["tokenizer.ggml.tokens"] += letters + words
    metadata["tokenizer.ggml.token_type"] += [1] * (len(letters) + len(words))
    metadata["tokenizer.ggml.scores"] += [-scores.random() for _ in letters + words]
    return metadata


def test_merge_rules_are_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path))
    metadata = large_sentencepiece()
    text = "\u4e00\u4e01\u4e00\u4e05\u4e06\u4e07\u4e08" * 5
    cold = load_gguf_tokenizer(metadata).encode(text)
    (path,) = (tmp_path / "tokenizers").iterdir()
    calls = []
    monkeypatch.setattr(spm_merges, "find_pairs", lambda *_: calls.append(1))
    assert load_gguf_tokenizer(metadata).encode(text) == cold
    assert not calls
    monkeypatch.undo()
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path))
    sound = path.read_bytes()
    for damaged in (b"", sound[:-8], sound[:-1] + b"\x77", b"\0" * 40):
        path.write_bytes(damaged)
        assert load_gguf_tokenizer(metadata).encode(text) == cold
        assert path.read_bytes() == sound
    metadata["tokenizer.ggml.scores"][-1] += 0.5
    load_gguf_tokenizer(metadata)
    assert len(list((tmp_path / "tokenizers").iterdir())) == 2


def test_unwritable_cache_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path / "file"))
    assert load_gguf_tokenizer(large_sentencepiece()).encode("hello")


@pytest.mark.parametrize("path", files_or_skip([p for p in VOCAB_FILES if "spm" in p.name], "vocabularies"))
def test_gemma4_kind_agrees_with_sentencepiece(path, monkeypatch, tmp_path):
    """The same words as rules in a file, read by the other kind, give the same tokens."""
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path))
    metadata = {**metadata_of(path), "tokenizer.ggml.add_space_prefix": False}
    spm = load_gguf_tokenizer(metadata)
    pairs = spm_merges._read_pairs(next((tmp_path / "tokenizers").iterdir()), spm.vocab_size)
    tokens = metadata["tokenizer.ggml.tokens"]
    rules = [f"{tokens[a]} {tokens[b]}" for a, b in zip(pairs[0::2], pairs[1::2], strict=True)]
    bpe = load_gguf_tokenizer({**metadata, "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": rules})
    for text in ("Hello, world!", "  two  lines ", "naïve 😀 日本語 \x07", "def f(x):\n    return x", "<s>"):
        assert bpe.encode(text) == spm.encode(text)
        assert bpe.decode(bpe.encode(text)) == text


def test_real_models_stop_where_they_should(monkeypatch, tmp_path):
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path))
    smol = tokenizer_of(real_model("SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert {"<|im_end|>", "<|endoftext|>"} <= {smol.token_text(i) for i in smol.eos_token_ids}
    qwen = tokenizer_of(real_model("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"))
    texts = {qwen.token_text(i) for i in qwen.eos_token_ids}
    assert "<|im_end|>" in texts
    assert "</s>" not in texts
