from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import byte_level

from caudal.tokenizer.fim_tokens import FimTokens, find_fim_tokens
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

QWEN = ["a", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|repo_name|>", "<|file_sep|>"]
DEEPSEEK = ["<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"]


def metadata(tokens, **ids):
    return {"tokenizer.ggml.tokens": tokens, **{f"tokenizer.ggml.{key}_token_id": value for key, value in ids.items()}}


def test_tokens_are_found_by_their_texts():
    assert find_fim_tokens(metadata(QWEN)) == FimTokens(prefix=1, suffix=3, middle=2, repository=4, separator=5)
    assert find_fim_tokens(metadata(DEEPSEEK)) == FimTokens(prefix=0, suffix=1, middle=2)


def test_the_files_own_ids_come_first():
    found = find_fim_tokens(metadata(QWEN, fim_pre=0, prefix=2, fim_sep=0))
    assert (found.prefix, found.separator) == (0, 0)
    assert find_fim_tokens(metadata(list("abc"), prefix=2, suffix=1, middle=0)) == FimTokens(
        prefix=2, suffix=1, middle=0
    )


@pytest.mark.parametrize("tokens", [list("abc"), QWEN[:3], None, 3, [1, 2], [], [[1], [2]]])
def test_a_model_without_all_three_has_none(tokens):
    assert find_fim_tokens(metadata(tokens)) is None


@given(st.dictionaries(st.sampled_from(["fim_pre", "suffix", "fim_rep"]), st.none() | st.integers() | st.text()))
def test_ids_that_make_no_sense_count_as_absent(ids):
    found = find_fim_tokens(metadata(QWEN, **ids))
    assert all(0 <= i < len(QWEN) for i in (found.prefix, found.suffix, found.middle, found.repository))


def test_the_tokenizer_has_them():
    control = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    tokenizer = load_gguf_tokenizer(byte_level(control=control))
    fim = tokenizer.fim_tokens
    assert [tokenizer.token_text(i) for i in (fim.prefix, fim.suffix, fim.middle)] == list(control)
    assert load_gguf_tokenizer(byte_level()).fim_tokens is None
