from __future__ import annotations

import io
import json
import logging

import pytest
from conftest import in_process
from hypothesis import given
from hypothesis import strategies as st
from test_openai_routes import chat, complete

from caudal.cli.process_log import JSONFormatter
from caudal.server.access_log import AccessLog, line_of, text_of
from caudal.server.request_record import RequestRecord
from caudal.server.settings import ServerSettings

SECRETS = ("sesame", "the-key", "the-answer", "the-query")


async def lines_of(capsys, style, *requests, **settings):
    async with in_process(ServerSettings(access_log=style, **settings)) as http:
        for request in requests:
            await request(http)
    return capsys.readouterr().err.splitlines()


async def test_a_json_line_per_request(capsys):
    async def ask(http):
        headers = {"x-request-id": "trace-7"}
        body = {"model": "scripted", "messages": [{"role": "user", "content": "say:the-answer sesame"}], "n": 2}
        response = await http.post("/v1/chat/completions?q=the-query", json=body, headers=headers)
        assert response.headers["x-client-request-id"] == "trace-7"
        ids.append(response.headers["x-request-id"])
        assert response.headers["request-id"] == ids[0]
        sizes.append(len(response.content))

    sizes, ids = [], []
    (line,) = map(json.loads, await lines_of(capsys, "json", ask))
    assert line["log"] == "access"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["bytes"] == sizes[0]
    assert line["model"] == "scripted"
    assert line["completion_tokens"] == 2 * (len("the-answer sesame") + 1)
    assert line["prompt_tokens"] == len("<user>say:the-answer sesame\n<assistant>") + 1
    assert 0 < line["first_token_s"] <= line["duration_s"]
    assert line["client_request_id"] == "trace-7"
    assert [line["request_id"]] == ids
    assert line["client"] == "127.0.0.1"
    assert line["time"].endswith("Z")
    assert "key" not in line
    assert "error" not in line


@pytest.mark.parametrize("style", ["text", "json"])
async def test_nothing_private_is_logged(capsys, style):
    async def ask(http):
        await chat(http, "say:the-answer sesame", user="sesame")
        await http.get("/v1/models?key=the-query", headers={"authorization": "Bearer the-key"})
        await http.get("/v1/models", headers={"authorization": "Bearer wrong-sesame"})
        await http.post("/v1/completions", content=b'{"prompt": "sesame", "n": "sesame"}')
        await http.delete(f"/admin/keys/ck-abcd1234-{'sesame0' * 6}s", headers={"authorization": "Bearer the-key"})

    lines = await lines_of(capsys, style, ask, api_keys=("the-key",))
    assert len(lines) == 5
    assert not [secret for secret in SECRETS if secret in "".join(lines)]


async def test_what_went_wrong(capsys):
    async def ask(http):
        await http.get("/v1/models/nothing")
        await http.get("/nowhere")
        await chat(http, "crash", stream=True)

    lines = [json.loads(line) for line in await lines_of(capsys, "json", ask) if line.startswith("{")]
    assert [line.get("error") for line in lines] == ["model_not_found", "not_found", "engine_error"]


async def test_streams_are_counted_to_their_end(capsys):
    async def ask(http):
        response = await chat(http, "say:hello", stream=True)
        sizes.append(len(response.content))

    sizes = []
    (line,) = await lines_of(capsys, "text", ask)
    assert f" {sizes[0]}B " in line
    assert " tokens=28+6 " in line
    assert " model=scripted" in line


async def test_off_writes_nothing(capsys):
    assert await lines_of(capsys, "off", lambda http: chat(http, "say:a")) == []


async def test_ids_that_are_no_ids_are_not_sent_back(http):
    for given_id in ("a b", "x" * 200, "ünï", ""):
        response = await http.get("/health", headers={"x-request-id": given_id.encode()})
        assert response.headers["x-request-id"].startswith("req_")
        assert "x-client-request-id" not in response.headers
    first, second = [(await complete(http, "say:a")).headers["x-request-id"] for _ in range(2)]
    assert first != second


def record(**changes):
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("::1", 5), **changes}
    return RequestRecord(scope)


@given(path=st.text(st.characters(), max_size=40), method=st.text(max_size=8))
def test_no_path_can_pretend_to_be_a_line(path, method):
    for style in ("text", "json"):
        stream = io.StringIO()
        AccessLog(style, stream).write(record(path=path, method=method))
        text = stream.getvalue()
        assert text.isascii()
        assert len(text.splitlines()) == 1
        if style == "text":
            assert len(text.split(" ")) == 8
        else:
            assert json.loads(text)["path"] == path


def test_long_paths_are_cut():
    stream = io.StringIO()
    AccessLog("text", stream).write(record(path="/" + "x" * 100_000))
    assert len(stream.getvalue()) < 1000


def test_a_closed_stream_fails_no_request():
    stream = io.StringIO()
    stream.close()
    AccessLog("text", stream).write(record())


def test_lines_for_people():
    assert text_of(line_of(record(path="/a b\nc"))).split(" ")[1:4] == ["::1", "GET", "/a%20b\\nc"]


def test_the_process_log_as_json():
    def line(**fields):
        values = {"name": "caudal", "level": logging.WARNING, "pathname": "", "lineno": 1, "args": (), "exc_info": None}
        return json.loads(JSONFormatter().format(logging.LogRecord(**{**values, **fields})))

    plain = line(msg="two\nlines %d", args=(7,))
    assert (plain["level"], plain["logger"], plain["message"]) == ("warning", "caudal", "two\nlines 7")
    assert plain["time"].endswith("Z")
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        found = line(msg="x", exc_info=(type(error), error, error.__traceback__))
    assert "ZeroDivisionError" in found["exception"]
