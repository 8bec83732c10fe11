"""Several models behind one real server: waiting streams, health, signals, and the verbs that ask it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import httpx
import pytest
from test_launch import Server, is_running

from caudal.cli import main
from caudal.server.early_stream import EarlyStream


@pytest.fixture
def gates(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRIPTED_GATES", str(tmp_path))
    return tmp_path


def wait_for(condition, timeout_s=15):
    due = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < due, "it did not happen in time"
        time.sleep(0.01)
    return found


def processes_begun(gates, name):
    return [int(path.name.split(".")[-2]) for path in gates.glob(f"{name}.*.begun")]


def chat(url, model, content="say:hi", **fields):
    body = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
    path = "/v1/chat/completions" if model else "/chat/completions"  # which takes the default
    return httpx.post(f"{url}{path}", json=body, timeout=20)


class Stream:
    """A streamed chat, read line by line in a thread."""

    def __init__(self, url, model, content="say:hi"):
        self.lines, self.status, self.content_type = [], None, None
        self._body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": True}
        self._url = f"{url}/v1/chat/completions"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with httpx.stream("POST", self._url, json=self._body, timeout=20) as response:
            self.status, self.content_type = response.status_code, response.headers["content-type"]
            self.lines.extend(filter(None, iter(response.iter_lines())))

    def end(self):
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.lines


def states(url):
    return {row["model"]: row["state"] for row in httpx.get(f"{url}/admin/models").json()["models"]}


def test_a_stream_is_kept_awake_while_its_model_loads(gates):
    with Server(1, "a", "gated") as server:
        url = server.wait_ready().url
        body = {"model": "gated", "messages": [{"role": "user", "content": "say:hi"}], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = filter(None, response.iter_lines())
            assert [next(lines) for _ in range(3)] == [": ping"] * 3
            (gates / "gated.open").touch()
            data = [line for line in lines if line != ": ping"]
        assert data[-1] == "data: [DONE]"
        text = "".join(
            choice["delta"].get("content") or "" for line in data[:-1] for choice in json.loads(line[6:])["choices"]
        )
        assert text == "hi"


def test_a_load_that_fails_within_a_stream_is_an_event_of_it(gates):
    with Server(1, "a", "gated") as server:
        url = server.wait_ready().url
        body = {"model": "gated", "messages": [{"role": "user", "content": "x"}], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            lines = filter(None, response.iter_lines())
            assert next(lines) == ": ping"
            (gates / "gated.broken").touch()
            last = [line for line in lines if line != ": ping"]
        assert last[0] == "event: error"
        assert json.loads(last[1].removeprefix("data: "))["error"]["code"] == "model_load_failed"
        assert chat(url, "a").status_code == 200


def test_a_load_that_fails_has_a_status_and_the_other_models_answer():
    with Server(1, "a", "broken") as server:
        url = server.wait_ready().url
        for fields in ({}, {"stream": True}):
            response = chat(url, "broken", **fields)
            assert response.status_code == 500
            assert "'broken' cannot be loaded: magic is" in response.json()["error"]["message"]
        assert chat(url, "a").status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_slow_load_is_a_503_that_says_when_to_come_again(gates, monkeypatch):
    monkeypatch.setenv("SCRIPTED_LOAD_TIMEOUT_S", "0.4")
    with Server(1, "a", "gated") as server:
        url = server.wait_ready().url
        response = chat(url, "gated")
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert "still being loaded" in response.json()["error"]["message"]
        (gates / "gated.open").touch()
        wait_for(lambda: states(url)["gated"] == "loaded")
        assert chat(url, "gated").status_code == 200


def test_a_client_that_leaves_while_it_waits_is_noticed_and_the_load_goes_on(gates):
    with Server(1, "a", "gated") as server:
        url = server.wait_ready().url
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={"model": "gated", "prompt": "x"}, timeout=0.3)

        def in_use():
            rows = httpx.get(f"{url}/admin/models").json()["models"]
            return next(row["in_use"] for row in rows if row["model"] == "gated")

        wait_for(lambda: processes_begun(gates, "gated"))
        wait_for(lambda: in_use() == 0)
        assert states(url)["gated"] == "loading"
        (gates / "gated.open").touch()
        wait_for(lambda: states(url)["gated"] == "loaded")


def test_health_names_the_stuck_model_and_the_other_answers():
    with Server(1, "a", "b") as server:
        url = server.wait_ready().url
        assert chat(url, "b").status_code == 200
        rows = httpx.get(f"{url}/admin/models").json()["models"]
        assert [row["healthy"] for row in rows] == [True, True]
        children = server.process.pid
        pid = wait_for(lambda: engine_of(children, 1))
        os.kill(pid, signal.SIGSTOP)  # no step ends and no heartbeat comes
        try:
            stuck = wait_for(lambda: (r := httpx.get(f"{url}/health")).status_code == 503 and r)
            assert "the engine of b is not ready" in stuck.json()["error"]["message"]
            assert chat(url, "a").status_code == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200)


def engine_of(server_pid, index):
    """The process of the engine that was started as number `index`."""
    try:
        with open(f"/proc/{server_pid}/task/{server_pid}/children") as file:  # noqa: PTH123 - a file of the kernel
            return sorted(map(int, file.read().split()))[index]
    except FileNotFoundError:
        pytest.skip("the kernel does not list a process's children: runs where it does, as in CI")


def test_killing_one_models_process_leaves_the_others_and_it_comes_back():
    with Server(1, "a", "b") as server:
        url = server.wait_ready().url
        open_b = None
        try:
            assert chat(url, "b").status_code == 200
            pid = engine_of(server.process.pid, 1)
            open_b = Stream(url, "b", "slow-loop:x")
            wait_for(lambda: busy(url, "b"))
            os.kill(pid, signal.SIGKILL)
            lines = open_b.end()
            assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
            assert chat(url, "a").status_code == 200
            wait_for(lambda: chat(url, "b").status_code == 200)
            assert not is_running(pid)
        finally:
            if open_b is not None:
                server.process.kill()
                open_b.end()


def busy(url, model):
    rows = httpx.get(f"{url}/admin/models").json()["models"]
    return next(row["in_use"] for row in rows if row["model"] == model) > 0


def test_sigterm_drains_every_model():
    with Server(10, "a", "b") as server:
        url = server.wait_ready().url
        assert chat(url, "b").status_code == 200
        streams = [Stream(url, name, "slow-say:" + "x" * 40) for name in ("a", "b")]
        wait_for(lambda: busy(url, "a") and busy(url, "b"))
        server.process.send_signal(signal.SIGTERM)
        assert [stream.end()[-1] for stream in streams] == ["data: [DONE]"] * 2
        assert server.process.wait(10) == 0


def test_sigterm_during_a_load_tells_who_waits_and_leaves(gates):
    with Server(30, "a", "gated") as server:
        url = server.wait_ready().url
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(chat(url, "gated")))
        waiting.start()
        (pid,) = wait_for(lambda: processes_begun(gates, "gated"))
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert time.monotonic() - began < 5
        waiting.join(10)
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].json()["error"]["message"]
        assert not is_running(pid)


def test_the_second_signal_leaves_at_once_with_several_models():
    with Server(60, "a", "b") as server:
        url = server.wait_ready().url
        assert chat(url, "b").status_code == 200
        stream = Stream(url, "b", "slow-loop:x")
        wait_for(lambda: busy(url, "b"))
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: not listens(url))
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        server.process.wait(10)
        assert time.monotonic() - began < 3
        stream.end()


def listens(url):
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return False
    return True


def test_an_exception_in_one_request_ends_that_request_only():
    with Server(1, "a", "b") as server:
        url = server.wait_ready().url
        stream = Stream(url, "a", "slow-say:" + "x" * 30)
        wait_for(lambda: busy(url, "a"))
        refused = chat(url, "a", "refuse-me")
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "the template refuses this conversation"
        assert stream.end()[-1] == "data: [DONE]"


def run(capsys, *arguments):
    status = main.run(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_ps_and_stop(capsys, monkeypatch):
    for name in ("CAUDAL_URL", "OLLAMA_HOST", "CAUDAL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with Server(1, "a", "b") as server:
        url = server.wait_ready().url
        status, out, _ = run(capsys, "ps", "--url", url)
        assert status == 0
        head, row = out.splitlines()
        assert head.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
        assert row.split()[0] == "a"
        assert row.endswith("for ever")
        assert chat(url, "b").status_code == 200
        monkeypatch.setenv("CAUDAL_URL", url)
        rows = json.loads(run(capsys, "ps", "--json")[1])
        assert [(row["model"], row["context_length"]) for row in rows] == [("a", 100_000), ("b", 100_000)]
        assert "4 min" in run(capsys, "ps")[1] or "5 min" in run(capsys, "ps")[1]
        assert run(capsys, "stop", "B:latest") == (0, "", "")
        assert states(url) == {"a": "loaded", "b": "unloaded"}
        status, _, err = run(capsys, "stop", "nobody")
        assert (status, err.count("\n")) == (1, 1)
        assert "caudal: the model 'nobody' is not served here" in err
        stream = Stream(url, "a", "slow-say:" + "x" * 30)
        wait_for(lambda: busy(url, "a"))
        status, _, err = run(capsys, "stop", "a")
        assert (status, err) == (0, "a is in use; it will be unloaded when its requests have ended\n")
        assert stream.end()[-1] == "data: [DONE]"
        wait_for(lambda: states(url)["a"] == "unloaded")
        assert chat(url, None).status_code == 200  # the first model is loaded again when it is asked for


async def test_what_follows_an_early_stream_is_part_of_it():
    sent = []

    async def send(message):
        sent.append(message)

    early = EarlyStream(send)
    await early.ping()
    await early({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await early({"type": "http.response.body", "body": b"data: x\n\n", "more_body": False})
    assert [message.get("body") for message in sent] == [None, b": ping\n\n", b"data: x\n\n"]

    sent.clear()
    early = EarlyStream(send)
    await early.ping()
    await early({"type": "http.response.start", "status": 503, "headers": [(b"content-type", b"application/json")]})
    await early({"type": "http.response.body", "body": b'{"error"', "more_body": True})
    await early({"type": "http.response.body", "body": b":1}"})
    assert sent[-1] == {
        "type": "http.response.body",
        "body": b'event: error\ndata: {"error":1}\n\n',
        "more_body": False,
    }
    assert [message["type"] for message in sent].count("http.response.start") == 1
