from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from caudal.cli.serve import read_keys
from caudal.errors import ConfigError
from caudal.server.keys.key import KeyFields
from caudal.server.keys.key_store import KeyStore
from caudal.server.launch import check_exposure, listen
from caudal.server.settings import ServerSettings

HERE = Path(__file__).parent


class Server:
    """serve_scripted.py and its standard error."""

    def __init__(self, drain_s, *rest, port=0):
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE}"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve_scripted.py"), str(port), str(drain_s), *rest],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.url = None

    def wait_ready(self):
        for line in self.process.stderr:
            found = re.search(r"ready on (\S+)", line)
            if found:
                self.url = found[1]
                return self
        pytest.fail("the server ended before it was ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def stream_in_thread(url, content, **fields):
    """Start a streaming chat; return a list that fills with its lines, and the thread."""
    lines = []

    def read():
        body = {"messages": [{"role": "user", "content": content}], "stream": True, **fields}
        with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=20) as response:
            lines.extend(line for line in response.iter_lines() if line)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.3)
    return lines, thread


def test_sigterm_lets_open_requests_finish():
    with Server(10) as server:
        server.wait_ready()
        lines, thread = stream_in_thread(server.url, "slow-say:" + "x" * 40)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        thread.join(10)
        assert lines[-1] == "data: [DONE]"
        assert server.process.wait(10) == 0


def test_requests_that_outlast_the_drain_get_an_error_event():
    with Server(0.3) as server:
        server.wait_ready()
        lines, thread = stream_in_thread(server.url, "slow-loop:x")
        server.process.send_signal(signal.SIGINT)
        thread.join(10)
        assert lines[-2] == "event: error"
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        assert server.process.wait(10) == 0


def test_second_signal_leaves_at_once():
    with Server(60) as server:
        server.wait_ready()
        _, thread = stream_in_thread(server.url, "slow-loop:x")
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        server.process.wait(10)
        thread.join(10)
        assert time.monotonic() - began < 3


def test_the_engine_leaves_when_the_server_is_killed():
    with Server(1) as server:
        server.wait_ready()
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        if not children.exists():
            pytest.skip("the kernel does not list a process's children: runs where it does, as in CI")
        (engine,) = map(int, children.read_text().split())
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and is_running(engine):
            time.sleep(0.05)
        assert not is_running(engine)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason():
    with Server(1, "broken") as server:
        assert server.process.wait(20) == 1
        assert "error: broken: magic is b'GGML'; expected b'GGUF'" in server.process.stderr.read()


def test_while_the_model_loads_health_says_so_and_a_signal_ends_it():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Server(30, "slow", port=port) as server:
        url = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                response = httpx.get(f"{url}/health")
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        assert response.status_code == 503
        response = httpx.post(f"{url}/v1/completions", json={"prompt": "x"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0
        assert time.monotonic() - began < 1.5


def test_a_port_in_use_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}.*--port"):
            listen(ServerSettings(port=port))


def test_an_unknown_host_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"cannot listen on nowhere\.invalid"):
        listen(ServerSettings(host="nowhere.invalid"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_other_machines_need_a_key(host):
    with pytest.raises(ConfigError, match="--insecure-no-key"):
        check_exposure(ServerSettings(host=host))
    check_exposure(ServerSettings(host=host, api_keys=("k",)))
    check_exposure(ServerSettings(host=host, insecure_no_key=True))


def test_a_key_in_the_state_directory_is_a_key(tmp_path):
    settings = ServerSettings(host="0.0.0.0", state_dir=tmp_path)
    with pytest.raises(ConfigError, match="caudal keys create"):
        check_exposure(settings)
    KeyStore(tmp_path).create(KeyFields(name="first"))
    check_exposure(settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_key(host):
    check_exposure(ServerSettings(host=host))


@pytest.mark.parametrize("keys", [("",), ("  ", "\n")])
def test_an_empty_key_does_not_open_the_server(keys, tmp_path):
    with pytest.raises(ConfigError, match="the API key given is empty"):
        read_keys(keys, None)
    (tmp_path / "keys").write_text("\n \n")
    with pytest.raises(ConfigError, match="the API key given is empty"):
        read_keys((), tmp_path / "keys")
    (tmp_path / "keys").write_bytes(b"first\nse\xfcnd\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 8\); expected a key in each line"):
        read_keys(keys, tmp_path / "keys")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_keys(keys, tmp_path)
    assert read_keys((), None) == ()
    assert read_keys(("a",), None) == ("a",)
