"""The offline facade, on a tiny model: several streams at once, large batches, interrupts and misuse."""

import pytest
from factory import tiny_checkpoint

from caudal import LLM, OutputRule, SamplingParams
from caudal.errors import EngineDead, EngineUnavailable, InvalidParameter, Overloaded

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_checkpoint(path)
    return path


@pytest.fixture
def llm(model_path):
    with LLM(model_path, backend="reference", max_model_len=64, max_num_seqs=4) as llm:
        yield llm


def text_of(chunks):
    return "".join(chunk.text for chunk in chunks)


def test_streams_that_are_read_in_turns_give_what_they_give_alone(llm):
    alone = [text_of(llm.stream(prompt, GREEDY)) for prompt in ("ab", "cd")]
    pairs = list(zip(llm.stream("ab", GREEDY), llm.stream("cd", GREEDY), strict=True))
    assert [text_of(chunks) for chunks in zip(*pairs, strict=True)] == alone


def test_a_batch_in_the_middle_of_a_stream_takes_nothing_from_it(llm):
    alone = text_of(llm.stream("ab", GREEDY))
    stream = llm.stream("ab", GREEDY)
    first = next(stream)
    llm.generate(["cd", "ef"], GREEDY)
    assert first.text + text_of(stream) == alone


def test_a_stream_that_is_dropped_leaves_nothing_behind(llm):
    stream = llm.stream("ab", GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    assert llm.engine.stats().kv_blocks_used == 0


def test_a_closed_llm_ends_its_streams_and_takes_no_more(llm):
    stream = llm.stream("ab", GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(EngineDead, match="closed before the answer was complete"):
        list(stream)
    with pytest.raises(EngineUnavailable, match="this LLM is closed; make a new one"):
        llm.stream("ab")
    with pytest.raises(EngineUnavailable, match="this LLM is closed"):
        llm.generate("ab")


def test_more_prompts_than_the_queue_holds(model_path):
    with LLM(model_path, backend="reference", max_model_len=64, max_num_seqs=2, max_queue_len=3) as llm:
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        answers = llm.generate([f"{i}" for i in range(17)], params)
        assert [answer.text for answer in answers] == [llm.generate(f"{i}", params)[0].text for i in range(17)]


def test_a_queue_that_others_have_filled(model_path):
    with LLM(model_path, backend="reference", max_model_len=64, max_num_seqs=1, max_queue_len=1) as llm:
        streams = []
        with pytest.raises(Overloaded):
            streams.extend(llm.stream("ab", GREEDY) for _ in range(9))
        with pytest.raises(Overloaded):
            llm.generate("cd", GREEDY)
        del streams


def test_ctrl_c_in_a_step_spoils_nothing_else(llm, monkeypatch):
    before = llm.generate("ab", GREEDY)[0].text
    other = llm.stream("cd", GREEDY)

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("ab", GREEDY)
    assert llm.generate("ab", GREEDY)[0].text == before
    with pytest.raises(EngineDead, match="interrupted"):
        list(other)


def test_seeds_of_several_answers_wrap_around(llm):
    params = SamplingParams(max_tokens=4, seed=2**64 - 1, n=2)
    first, second = llm.generate("ab", params)
    assert first.token_ids == llm.generate("ab", SamplingParams(max_tokens=4, seed=2**64 - 1))[0].token_ids
    assert second.token_ids == llm.generate("ab", SamplingParams(max_tokens=4, seed=0))[0].token_ids


@pytest.mark.parametrize("bias", [1e39, float("inf"), float("nan"), 2e9, -1e39])
def test_a_bias_that_no_logit_can_bear_is_refused(bias):
    with pytest.raises(InvalidParameter, match=r"logit_bias of token 5 is .*; expected a number from -1e9 to 1e9"):
        SamplingParams(logit_bias={5: bias})


def test_min_tokens_holds_for_stop_strings_too(llm):
    text = text_of(llm.stream("ab", GREEDY))
    stop = text[:1]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,), min_tokens=12)
    assert text_of(llm.stream("ab", params)) == text


def test_an_answer_has_the_form_that_was_asked_for(llm):
    params = SamplingParams(temperature=2, seed=3, max_tokens=30, ignore_eos=True)
    colours = OutputRule(kind="choice", value=["red", "blue"])
    assert {answer.text for answer in llm.generate(["a", "b", "c"], params, output=colours)} <= {"red", "blue"}
    assert text_of(llm.stream("a", params, output=colours)) in ("red", "blue")
    assert len(llm.generate("a", params)[0].token_ids) == 30


def test_a_form_that_cannot_be_is_refused_and_nothing_else(llm):
    stream = llm.stream("ab", GREEDY)
    with pytest.raises(InvalidParameter, match="cannot be followed"):
        llm.generate("a", output=OutputRule(kind="regex", value="("))
    with pytest.raises(InvalidParameter, match="expected a list of texts"):
        llm.generate("a", output=OutputRule(kind="choice", value="red"))
    assert text_of(stream)
    assert not llm.engine.has_work
