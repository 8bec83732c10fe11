"""Streaming text equals one-shot text, however tokens arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import VOCAB_FILES, byte_level, files_or_skip, sentencepiece, tokenizer_of

from caudal.tokenizer.from_gguf import load_gguf_tokenizer


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tiny(request):
    return load_gguf_tokenizer(request.param())


def pushes(data, ids):
    """Cut ids into runs, empty ones among them."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=12)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def check(tokenizer, prompt, answer, data):
    skip = data.draw(st.booleans())
    stream = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    pieces = [stream.push(run) for run in pushes(data, answer)]
    text = "".join(pieces) + stream.flush()

    # What the prompt alone has for certain: all but a character that it leaves unfinished.
    before = tokenizer.detokenizer((), skip_special_tokens=skip)
    shown = before.push(prompt)
    assert shown + text == tokenizer.decode([*prompt, *answer], skip_special_tokens=skip)

    hidden = tokenizer.special_ids if skip else ()
    joined = b"".join(tokenizer.token_bytes(i) for i in [*prompt, *answer] if i not in hidden)
    if tokenizer._drop_space:
        joined = joined.removeprefix(b" ")
    assert shown + text == joined.decode("utf-8", errors="replace")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_tiny_vocabularies(tiny, data):
    """Nearly all tokens here are single bytes, so most texts are broken UTF-8."""
    ids = st.lists(st.integers(0, tiny.vocab_size - 1), max_size=30)
    check(tiny, data.draw(ids), data.draw(ids), data)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), text=st.text(max_size=20), start=st.integers(0, 20))
def test_never_half_a_character(tiny, data, text, start):
    """Valid text streams without U+FFFD, and every push gives whole characters."""
    ids = tiny.encode(text.replace("\ufffd", ""), add_special_tokens=False)
    prompt, answer = ids[:start], ids[start:]
    stream = tiny.detokenizer(prompt)
    for token_id in answer:
        assert "\ufffd" not in stream.push([token_id])
    assert stream.flush() == ""


@pytest.mark.parametrize("path", files_or_skip(VOCAB_FILES, "vocabularies"))
def test_published_vocabularies(path, monkeypatch, tmp_path):
    monkeypatch.setenv("CAUDAL_CACHE_DIR", str(tmp_path))
    tokenizer = tokenizer_of(path)
    any_id = st.integers(0, tokenizer.vocab_size - 1)
    odd_ids = sorted(tokenizer.special_ids) + list(range(259)) + [tokenizer.vocab_size - 1]
    ids = st.lists(any_id | st.sampled_from(odd_ids), max_size=20)

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def run(data):
        check(tokenizer, data.draw(ids), data.draw(ids), data)

    run()


def test_the_leading_space_belongs_to_the_context():
    tokenizer = load_gguf_tokenizer(sentencepiece())
    hello = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.detokenizer([]).push(hello) == "hello"
    assert tokenizer.detokenizer([1]).push(hello) == "hello"
    assert tokenizer.detokenizer(hello).push(hello) == " hello"


def test_a_character_begun_in_the_prompt_is_finished_in_the_answer():
    tokenizer = load_gguf_tokenizer(byte_level())
    ids = tokenizer.encode("é")
    stream = tokenizer.detokenizer(ids[:1])
    assert stream.push(ids[1:]) == "é"
    assert tokenizer.detokenizer(ids[:1]).flush() == "\ufffd"
