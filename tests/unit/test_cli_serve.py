"""What `caudal serve`, `ps` and `stop` refuse before anything runs: one line and an exit status."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from factory import tiny_checkpoint

from caudal.cli import main
from caudal.cli.running_server import server_url
from caudal.errors import ConfigError


def run(capsys, *arguments):
    status = main.run(list(arguments))
    _, err = capsys.readouterr()
    assert err.startswith("caudal: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return status, err


@pytest.fixture
def model(tmp_path):
    return str(tiny_checkpoint(tmp_path / "m.gguf"))


def test_misuse_is_status_2(capsys, model, tmp_path):
    refused = {
        (): "there is nothing to serve; give a MODEL, or --models-dir DIR",
        (model, "--alias", "x"): "--alias is 'x'; expected NAME=MODEL",
        (model, "--port", "0", "--alias", "x=y"): "--alias x=y: 'y' is not served; this server has 'm'",
        (model, "--keep-alive", "soon"): "--keep-alive is 'soon'; expected seconds, or a duration",
        (model, "--max-loaded-models", "0"): "--max-loaded-models",
        (model, "--load-timeout", "0"): "--load-timeout",
        ("--models-dir", str(tmp_path / "none"), "--port", "0"): "which is no folder",
        ("--models-dir", str(tmp_path), "--served-model-name", "x"): "--served-model-name names the first MODEL",
        (model, "--models-dir", model): "--models-dir",
        (model, "--manage-models"): "lets clients change the models in a folder, and there is none; give --models-dir",
    }
    for arguments, message in refused.items():
        status, err = run(capsys, "serve", *arguments)
        assert (status, message in err) == (2, True), (arguments, err)


def test_two_files_of_one_name(capsys, model, tmp_path):
    (tmp_path / "sub").mkdir()
    other = str(tiny_checkpoint(tmp_path / "sub" / "m.gguf"))
    status, err = run(capsys, "serve", model, other)
    assert status == 2
    assert "are both called 'm'; rename one" in err


@pytest.mark.parametrize("second", [False, True])
def test_a_model_that_does_not_exist_is_status_1(capsys, model, tmp_path, second):
    status, err = run(capsys, "serve", *[model] * second, str(tmp_path / "none.gguf"), "--port", "0")
    assert status == 1
    assert "none.gguf does not exist" in err


def test_a_first_model_that_is_broken_is_status_1(capsys, tmp_path):
    (tmp_path / "b.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    status, err = run(capsys, "serve", str(tmp_path / "b.gguf"), "--port", "0")
    assert status == 1
    assert "b.gguf: " in err
    assert "a zip archive" in err


def test_a_port_in_use_is_one_line(capsys, model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, err = run(capsys, "serve", model, "--port", port)
    assert status == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in err
    assert err.endswith("choose another with --port\n")


@pytest.mark.parametrize(
    ("environment", "given", "url"),
    [
        ({}, None, "http://127.0.0.1:8000"),
        ({"OLLAMA_HOST": "0.0.0.0"}, None, "http://127.0.0.1:11434"),
        ({"OLLAMA_HOST": "box:9"}, None, "http://box:9"),
        ({"OLLAMA_HOST": "https://box"}, None, "https://box:443"),
        ({"OLLAMA_HOST": ":8000"}, None, "http://127.0.0.1:8000"),
        ({"OLLAMA_HOST": "[::1]:9"}, None, "http://[::1]:9"),
        ({"OLLAMA_HOST": "x", "CAUDAL_URL": "http://y:1/"}, None, "http://y:1"),
        ({"CAUDAL_URL": "http://y:1"}, "https://z", "https://z"),
    ],
)  # fmt: skip
def test_where_the_server_is(monkeypatch, environment, given, url):
    for name in ("CAUDAL_URL", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert server_url(given) == url


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "localhost:8000", "http://", "http://x:port", "ftp://x", "http://[x"]
)
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="the server's address is"):
        server_url(url)


def test_nobody_answers(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for verb in (["ps"], ["stop", "m"]):
        status, err = run(capsys, *verb, "--url", url)
        assert status == 1
        assert f"no server answers at {url}: " in err


class OtherServer(BaseHTTPRequestHandler):
    answer = b"<html>"
    status = 200

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (200, b"<html>", "is no server of Caudal"),
        (200, b'{"models": 5}', "is no server of Caudal"),
        (404, b"404 page not found", "answered 404; is it one of Caudal?"),
        (401, b'{"error": {"message": "no valid API key"}}', "wants a key that it knows"),
    ],
)
def test_another_server_answers(capsys, status, answer, message):
    handler = type("Handler", (OtherServer,), {"status": status, "answer": answer})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        found, err = run(capsys, "ps", "--url", f"http://127.0.0.1:{server.server_address[1]}")
        thread.join()
    assert found == 1
    assert message in err
