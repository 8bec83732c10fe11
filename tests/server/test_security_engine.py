"""The engine's socket and what leaves the server. CVE-2024-9052, CVE-2025-32444, CVE-2025-6242 and their relatives."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from attacks import target

from caudal.config import EngineConfig
from caudal.engine.framing import pack_frame
from caudal.messages import AddRequest, decode_from_engine, decode_to_engine, encode
from caudal.sampling_params import SamplingParams

HERE = Path(__file__).parent


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def engine():
    """A scripted engine process, and our end of its socket."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE}"}
    command = [sys.executable, "-m", "caudal.engine.engine_process", "--fd", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(
            [*command, "--engine", "scripted_engine:load"],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        theirs.close()
        ours.settimeout(20)
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


def start(ours):
    config = EngineConfig(model_path="scripted")
    ours.sendall(pack_frame(msgspec.msgpack.encode(config)))
    assert ours.recv(65536)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_is_read_by_either_end(tmp_path, protocol):
    data = pickle.dumps(Evil(tmp_path / "made"), protocol)
    for decode in (decode_to_engine, decode_from_engine):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode(data)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("when", ["before the configuration", "after it"])
def test_a_pickle_on_the_socket_ends_the_process_and_does_nothing(tmp_path, engine, when):
    process, ours = engine
    if when == "after it":
        start(ours)
    ours.sendall(pack_frame(pickle.dumps(Evil(tmp_path / "made"))))
    assert process.wait(20) != 0
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 2**32 - 1) + b"x",
        pack_frame(msgspec.msgpack.encode({"type": "exec", "code": "1"})),
        pack_frame(msgspec.msgpack.encode({"type": "add", "request_id": 5})),
        pack_frame(msgspec.msgpack.encode(msgspec.msgpack.Ext(0, b"x"))),
        pack_frame(b""),
        pack_frame(b"\xdd\xff\xff\xff\xff"),
        pack_frame(b"\x91" * 100_000),
    ],
    ids=["length", "unknown", "wrong type", "extension", "empty", "huge list", "nesting"],
)
def test_a_garbled_socket_ends_the_process(engine, data):
    process, ours = engine
    start(ours)
    with suppress(OSError):
        ours.sendall(data)
    assert process.wait(20) != 0


def test_messages_are_plain_data():
    """What the schema does not know is dropped, and values of other types are refused."""
    request = AddRequest(request_id="a", prompt_token_ids=[1], params=SamplingParams())
    plain = msgspec.msgpack.decode(encode(request))
    again = decode_to_engine(msgspec.msgpack.encode({**plain, "callback": "os.system"}))
    assert again == request
    with pytest.raises(msgspec.ValidationError):
        decode_to_engine(msgspec.msgpack.encode({**plain, "prompt_token_ids": ["x"]}))


@pytest.fixture(scope="module")
def server():
    with target() as found:
        yield found


@pytest.fixture
def bait():
    """A listener that must never be called."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("scheme", ["http", "https", "ftp", "gopher", "ws", "HTTP", "http:/", "\\\\", "file", "data"])
def test_no_url_in_a_request_is_fetched(server, bait, scheme):
    """CVE-2025-6242, CVE-2026-24779, CVE-2026-34753: image, audio and file URLs that led inside the network."""
    host = f"127.0.0.1:{bait.getsockname()[1]}"
    urls = {"file": "file:///etc/passwd", "data": "data:text/plain;base64,cm9vdDo=", "\\\\": f"\\\\{host}\\x"}
    url = urls.get(scheme, f"{scheme}://{host}/x.png")
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "file", "file": {"file_data": url, "filename": url}},
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "text", "text": f"see {url}"},
    ]
    for part in parts:
        status, body = server.chat([part])
        assert status == (200 if part["type"] == "text" else 400), body
        assert b"root:" not in body
    for fields in (
        {"metadata": {"webhook": url}},
        {"documents": [url]},
        {"user": url},
        {"tools": [{"type": "mcp", "server_url": url}]},
    ):
        assert server.chat("say:x", **fields)[0] in (200, 400)
    for path in ("/v1/models/", "/"):
        assert server.ask("GET", path + url.replace(" ", "").replace("\\", "%5c"))[0] in (200, 400, 404)
    server.check_alive()


def test_the_server_has_no_connection_but_its_clients(server):
    """Nor does it call home."""
    sockets = Path("/proc/net/tcp")
    if not sockets.exists():
        pytest.skip("finds connections in /proc, which only Linux has; runs in CI")
    listening = f":{server.port:04X}"
    inodes = {str(fd.readlink())[8:-1] for fd in Path(f"/proc/{server.pid}/fd").iterdir() if is_socket(fd)}
    rows = [line.split() for line in sockets.read_text().splitlines()[1:]]
    own = [row for row in rows if row[9] in inodes]
    assert own
    assert all(row[1].endswith(listening) for row in own), own


def is_socket(fd):
    with suppress(OSError):
        return str(fd.readlink()).startswith("socket:[")
    return False


def test_error_bodies_are_json_in_one_shape(server):
    """Whatever refuses a request: the parser, a layer, the router or a handler."""
    for data in (
        b"nonsense\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ):
        answer = server.raw(data, then_close=True)
        assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}
