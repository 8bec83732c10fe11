"""`--chat-template` of `caudal run` and `caudal serve`."""

from __future__ import annotations

import pytest
from factory import tiny_checkpoint

from caudal import LLM
from caudal.cli import main
from caudal.cli.template_option import read_template
from caudal.errors import ConfigError
from caudal.server.launch import ModelSources
from caudal.server.settings import ServedModel
from caudal.tokenizer.chat_template import CHATML

OWN = "{% for m in messages %}({{ m.role }}) {{ m.content }} {% endfor %}"


def test_a_file_a_text_and_a_name(tmp_path):
    (tmp_path / "own.jinja").write_text(OWN, encoding="utf-8")
    assert read_template(str(tmp_path / "own.jinja")) == OWN
    assert read_template(OWN) == OWN
    assert read_template("chatml") == CHATML


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "which is no file that can be read: No such file or directory"),
        (b"\xff\xfe{{", "which is not UTF-8 text"),
        (b"", "which holds no jinja2 template"),
        (b"{% for %}", "cannot be compiled"),
        (b"{" + b" " * (2 << 20), "characters; at most"),
    ],
)
def test_what_is_no_template(tmp_path, content, message):
    file = tmp_path / "given"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_template(str(file))


@pytest.mark.parametrize("verb", ["run", "serve"])
def test_a_wrong_one_is_told_before_anything_is_loaded(capsys, tmp_path, verb):
    status = main.run([verb, str(tmp_path / "no-model.gguf"), "--chat-template", str(tmp_path / "none")])
    _, err = capsys.readouterr()
    assert (status, err.count("\n")) == (2, 1)
    assert "--chat-template" in err


def test_it_is_for_a_model_that_is_named(capsys, tmp_path):
    assert main.run(["serve", "--models-dir", str(tmp_path), "--chat-template", "chatml"]) == 2
    assert "--chat-template is for the first MODEL, and there is none" in capsys.readouterr()[1]


def test_it_takes_the_place_of_the_files(tmp_path):
    path = tiny_checkpoint(tmp_path / "m.gguf")
    served = ServedModel(name="m", chat_template=OWN)
    (model,) = ModelSources(named=((served, path),)).catalog().models()
    assert model.facts.chat_template == OWN
    pytest.importorskip(
        "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
    )
    with LLM(path, chat_template=OWN) as llm, LLM(path) as plain:
        chat = [{"role": "user", "content": "hola"}]
        assert llm.tokenizer.render_chat(chat) == "(user) hola "
        assert plain.tokenizer.render_chat(chat) != "(user) hola "
