"""`caudal run` and its chat, on a model that is a script."""

import io
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from caudal import SamplingParams
from caudal.cli import main
from caudal.cli.answer import AnswerStats, interrupt_flag, stream_answer
from caudal.cli.chat import Chat, changed_params
from caudal.cli.list_models import human_bytes
from caudal.errors import RequestError, TemplateError
from caudal.llm import Chunk


class ScriptedLLM:
    """Answers with the words of a script and records what it was asked."""

    def __init__(self, words=("Hello", " there"), template="x"):
        self.words = words
        self.tokenizer = SimpleNamespace(chat_template=template)
        self.asked = []
        self.closed_streams = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def stream(self, prompt, params):
        self.asked.append((prompt, params))
        return self._chunks()

    chat_stream = stream

    def _chunks(self):
        try:
            for index, word in enumerate(self.words):
                last = index == len(self.words) - 1
                yield Chunk(word, [index], "stop" if last else None, 7, 0)
        finally:
            self.closed_streams += 1


@pytest.fixture
def llm(monkeypatch, tmp_path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")
    scripted = ScriptedLLM()
    scripted.path = str(model)
    monkeypatch.setattr("caudal.llm.LLM", lambda _path, **_options: scripted)
    return scripted


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stdin(monkeypatch):
    """Make stdin hold text: `stdin("piped")`, or a terminal: `stdin(None)`."""

    def put(text):
        pipe = Terminal() if text is None else io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr("sys.stdin", pipe)

    return put


def test_one_shot_prints_the_answer_alone(capsys, llm, stdin):
    stdin(None)
    assert main.run(["run", llm.path, "Say", "hello", "--seed", "3", "--stop", "END", "-n", "5"]) == 0
    assert capsys.readouterr() == ("Hello there\n", "")
    messages, params = llm.asked[0]
    assert messages == [{"role": "user", "content": "Say hello"}]
    assert params == SamplingParams(seed=3, stop=("END",), max_tokens=5)


def test_defaults_are_those_of_sampling_params(llm, stdin):
    stdin(None)
    main.run(["run", llm.path, "x"])
    assert llm.asked[0][1] == SamplingParams()


def test_verbose_prints_speeds_on_stderr(capsys, llm, stdin):
    stdin(None)
    main.run(["run", llm.path, "x", "--verbose"])
    out, err = capsys.readouterr()
    assert out == "Hello there\n"
    assert err.startswith("prompt: 7 tokens, ")
    assert "generation: 2 tokens, " in err


@pytest.mark.parametrize(
    ("words", "piped", "expected"),
    [([], "from the pipe\n", "from the pipe"), (["Shorten:"], "a text", "Shorten:\n\na text")],
)
def test_piped_text_follows_the_prompt(llm, stdin, words, piped, expected):
    stdin(piped)
    assert main.run(["run", llm.path, *words]) == 0
    assert llm.asked[0][0][-1]["content"] == expected


def test_a_silent_pipe_is_named(capsys, llm, monkeypatch):
    reading, writing = os.pipe()
    threading.Timer(0.2, os.close, [writing]).start()
    with os.fdopen(reading) as pipe, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", pipe)
        patch.setattr("caudal.cli.run.STDIN_PATIENCE_S", 0.01)
        assert main.run(["run", llm.path, "Say"]) == 0
    assert "stdin is a pipe, waiting for its end" in capsys.readouterr().err
    assert llm.asked[0][0][-1]["content"] == "Say"


def test_nothing_to_answer_is_misuse(capsys, llm, stdin):
    stdin("")
    assert main.run(["run", llm.path]) == 2
    assert "no prompt" in capsys.readouterr().err


def test_system_message(llm, stdin):
    stdin(None)
    main.run(["run", llm.path, "hi", "--system", "Be brief."])
    assert llm.asked[0][0][0] == {"role": "system", "content": "Be brief."}


def test_a_base_model_continues_the_text(llm, stdin):
    stdin(None)
    llm.tokenizer.chat_template = None
    main.run(["run", llm.path, "Once upon"])
    assert llm.asked[0][0] == "Once upon"


def test_an_answer_that_fails_ends_its_line(capsys, llm, stdin, monkeypatch):
    def broken():
        yield Chunk("Hel", [1], None, 7, 0)
        raise TemplateError("no such role")

    monkeypatch.setattr(llm, "chat_stream", lambda *_: broken())
    stdin(None)
    assert main.run(["run", llm.path, "x"]) == 1
    assert capsys.readouterr() == ("Hel\n", "caudal: no such role\n")


def chat_with(llm, monkeypatch, *lines):
    feed = iter(lines)

    def read(_prompt):
        line = next(feed, EOFError)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    chat = Chat(llm, SamplingParams(), None, verbose=False)
    chat.run()
    return chat


def test_chat_remembers(llm, monkeypatch):
    chat_with(llm, monkeypatch, "one", "two")
    assert [turn["role"] for turn in llm.asked[1][0]] == ["user", "assistant", "user"]
    assert llm.asked[1][0][1]["content"] == "Hello there"


def test_chat_commands(capsys, llm, monkeypatch):
    lines = [
        "one",
        "/clear",
        "/system Be brief.",
        "/set temperature 0.2",
        "/set stop END",
        "two",
        "/help",
        "/exit",
        "x",
    ]
    chat = chat_with(llm, monkeypatch, *lines)
    messages, params = llm.asked[1]
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two"}]
    assert (params.temperature, params.stop) == (0.2, ("END",))
    assert len(llm.asked) == 2
    assert "/set NAME VALUE" in capsys.readouterr().out
    assert len(chat.turns) == 2


def test_chat_goes_on_after_mistakes(capsys, llm, monkeypatch):
    chat_with(llm, monkeypatch, "/frob", "/set warmth 3", "/set temperature hot", "/set top_p 7", "", "hi")
    err = capsys.readouterr().err
    assert "unknown command /frob" in err
    assert "no parameter 'warmth'" in err
    assert "'hot' is no value" in err
    assert "top_p is 7" in err
    assert len(llm.asked) == 1


def test_chat_survives_ctrl_c_at_the_prompt(llm, monkeypatch):
    chat_with(llm, monkeypatch, KeyboardInterrupt, "hi")
    assert len(llm.asked) == 1


def test_chat_reads_several_lines_between_fences(llm, monkeypatch):
    chat_with(llm, monkeypatch, '"""first', "second", '"""')
    assert llm.asked[0][0][-1]["content"] == "first\nsecond"


def test_ctrl_c_stops_the_answer_and_not_the_program():
    llm = ScriptedLLM(words=["a", "b", "c", "d"])

    def write(text):
        if text == "b":
            os.kill(os.getpid(), signal.SIGINT)

    with interrupt_flag() as interrupted:
        text = stream_answer(llm.stream("x", None), AnswerStats(), write, interrupted.is_set)
    assert text == "ab"
    assert llm.closed_streams == 1


def test_a_second_ctrl_c_leaves():
    with interrupt_flag() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("text", "stop"), [("ñ", "ñ"), (r"\n¿", "\n¿"), ("。", "。"), (r"\t", "\t")])
def test_changed_stop_strings_may_hold_any_character(text, stop):
    assert changed_params(SamplingParams(), "stop", text).stop == (stop,)


def test_set_offers_only_what_a_line_can_hold():
    with pytest.raises(RequestError) as error:
        changed_params(SamplingParams(), "nothing", "1")
    assert "logit_bias" not in str(error.value)
    assert "stop_token_ids" not in str(error.value)
    assert "stop" in str(error.value)


def test_changed_params_unsets():
    assert changed_params(SamplingParams(max_tokens=3), "max_tokens", "none").max_tokens is None
    with pytest.raises(RequestError):
        changed_params(SamplingParams(), "logit_bias", "1")


@pytest.mark.parametrize(("size", "text"), [(12, "12 B"), (98_362_432, "93.8 MiB"), (5 << 30, "5.0 GiB")])
def test_human_bytes(size, text):
    assert human_bytes(size) == text
