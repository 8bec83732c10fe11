"""The protocol itself: heads, bodies, smuggling, slow clients. Classes: CVE-2025-48956, CVE-2024-12886, slow loris."""

from __future__ import annotations

import gzip
import json
import socket
import time
import zlib

import pytest
from attacks import check_silent, error_of, target

MAX_BODY, HEAD_S, BODY_S = 100_000, 1.0, 1.0
CHAT = json.dumps({"messages": [{"role": "user", "content": "say:hidden"}]}).encode()


@pytest.fixture(scope="module")
def server():
    with target(max_body_bytes=MAX_BODY, head_timeout_s=HEAD_S, body_timeout_s=BODY_S) as found:
        yield found


@pytest.fixture(autouse=True)
def alive(server):
    yield
    server.check_alive()


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


def body_of(answer):
    return answer.partition(b"\r\n\r\n")[2]


def head(*lines, start=b"POST /chat/completions HTTP/1.1"):
    return b"\r\n".join([start, b"Host: 127.0.0.1", b"Connection: close", *lines, b"", b""])


@pytest.mark.parametrize(
    "data",
    [
        head(b"X: " + b"a" * 200_000),
        head(b"a" * 200_000 + b": x"),
        head(*(b"X-%d: y" % i for i in range(20_000))),
        head(start=b"GET /" + b"a" * 200_000 + b" HTTP/1.1"),
        head(start=b"GET /health?" + b"a=b&" * 50_000 + b" HTTP/1.1"),
        b"GET /health HTTP/1.1\r\nX: " + b"a" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
    ],
    ids=["value", "name", "many", "path", "query", "no end", "no end of the line"],
)
def test_giant_heads(server, data):
    """CVE-2025-48956."""
    answer = server.raw(data)
    if answer:  # a reset may overtake it
        assert status_of(answer) in (400, 431)
        assert error_of(body_of(answer))["code"] in ("headers_too_large", "invalid_http")


def test_a_head_in_drops_has_the_same_bound(server):
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        sent = 0
        try:
            while sent < 100_000_000:  # the system's own buffers hold some of it
                sent += connection.send(b"a" * 50_000)
        except OSError:
            pass
        assert sent < 100_000_000
        answer = server.read(connection)
        assert not answer or status_of(answer) == 431


@pytest.mark.parametrize(
    "first", [b"", b"G", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["none", "byte", "half"]
)
def test_slow_heads(server, first):
    """Slow loris: a connection that never asks anything is closed, however it dawdles."""
    began = time.monotonic()
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(first)
        answer = server.read(connection)
    assert HEAD_S * 0.5 < time.monotonic() - began < HEAD_S + 4
    assert status_of(answer) == 408


def test_blank_lines_do_not_hold_a_connection(server):
    began = time.monotonic()
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"\r\n")
        server.read(connection)
    assert time.monotonic() - began < HEAD_S + 4


def test_slow_bodies(server):
    began = time.monotonic()
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(head(b"Content-Length: 1000") + b"{")
        answer = connection.recv(65536)
    assert status_of(answer) == 408
    assert BODY_S * 0.5 < time.monotonic() - began < BODY_S + 4


def test_many_idle_connections_do_not_keep_others_out(server):
    idle = [socket.create_connection((server.host, server.port), timeout=10) for _ in range(200)]
    try:
        server.check_alive()
    finally:
        for connection in idle:
            connection.close()


def test_a_declared_body_that_is_too_large(server):
    answer = server.raw(head(b"Content-Length: 999999999999"))
    assert status_of(answer) == 413


def test_an_undeclared_body_that_is_too_large(server):
    chunk = b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"
    answer = server.raw(head(b"Transfer-Encoding: chunked") + chunk * 4 + b"0\r\n\r\n")
    assert not answer or status_of(answer) == 413


@pytest.mark.parametrize("length", [b"-1", b"1e9", b"0x10", b"99999999999999999999999999", b"1, 2", b" ", b"+5"])
def test_lengths_that_are_no_lengths(server, length):
    answer = server.raw(head(b"Content-Length: " + length) + b"{}", then_close=True)
    assert not answer or status_of(answer) in (400, 413)


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Transfer-Encoding: chunked, identity",),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding : chunked",),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
        (b" Transfer-Encoding: chunked",),
        (b"X: y\nContent-Length: 0",),
        (b"Bad Header: x",),
        (b"X: \x00",),
    ],
)
def test_smuggling(server, lines):
    """Two readings of where a request ends let a second one hide in the first."""
    hidden = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = server.raw(head(*lines) + b"0\r\n\r\n" + hidden, then_close=True)
    assert answer.count(b"HTTP/1.1 4") <= 1
    assert b"HTTP/1.1 200" not in answer
    assert b"vllm:" not in answer
    assert not answer or status_of(answer) in (400, 408, 411, 413)


@pytest.mark.parametrize("size", [b"fffffffffffffffff", b"-1", b"0x5", b"5;" + b"a" * 100_000, b"zz", b""])
def test_broken_chunks(server, size):
    answer = server.raw(head(b"Transfer-Encoding: chunked") + size + b"\r\nhello\r\n0\r\n\r\n", then_close=True)
    assert not answer or status_of(answer) in (400, 413)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00" * 1000,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET evil HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"{" * 1000,
    ],
)
def test_what_is_no_request(server, data):
    answer = server.raw(data, then_close=True)
    assert not answer or 400 <= status_of(answer) < 500
    check_silent(answer)


def test_upgrades_are_ignored(server):
    for protocol in (b"h2c", b"websocket", b"evil"):
        lines = (b"Upgrade: " + protocol, b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Version: 13")
        data = b"\r\n".join(
            [b"GET /v1/models HTTP/1.1", b"Host: 127.0.0.1", b"Connection: Upgrade, close", *lines, b"", b""]
        )
        answer = server.raw(data, then_close=True)
        assert not answer or status_of(answer) in (200, 400, 403, 404, 426)
        assert b"101 Switching" not in answer


def sent_in(parts, server):
    """What is answered to a request whose bytes come in packets of their own."""
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
            time.sleep(0.001)
        return server.read(connection)


JAVA_SAYS = "say:Upgrade: h2c\r\nConnection: Upgrade\r\n\r\nPOST / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"
JAVA_LINES = (
    b"Connection: close, Upgrade, HTTP2-Settings",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    b"uPGRADE: h2c",
    b"User-Agent: Java-http-client/21.0.2",
)


def java_request(*, chunked=False):
    """A POST as Java's HttpClient makes it over plain HTTP, whose body looks like heads; its head, and its body."""
    body = b"\r\n\r\n" + json.dumps({"messages": [{"role": "user", "content": JAVA_SAYS}]}).encode()
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    lines = (b"POST /chat/completions HTTP/1.1", b"Host: 127.0.0.1", *JAVA_LINES, framing, b"", b"")
    return b"\r\n".join(lines), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("split", ["one packet", "head and body", "inside the field", "bytes"])
def test_bodies_behind_an_offer_of_http_2_are_read(server, split, chunked):
    """Java's HttpClient offers HTTP/2 with every request; RFC 9110, 7.8 lets a server ignore that."""
    head, body = java_request(chunked=chunked)
    data = head + body
    cut = data.index(b"uPGRADE") + 3
    parts = {
        "one packet": [data],
        "head and body": [head, body],
        "inside the field": [data[:cut], data[cut:]],
        "bytes": [data[i : i + 1] for i in range(len(data))],
    }[split]
    answer = sent_in(parts, server)
    assert status_of(answer) == 200, answer
    assert json.loads(body_of(answer))["choices"][0]["message"]["content"] == JAVA_SAYS.removeprefix("say:")


def test_offers_in_pipelined_requests(server):
    """Each of them is a request of its own, and what follows the last one is read as well."""
    body = json.dumps({"messages": [{"role": "user", "content": "say:piped"}]}).encode()
    lines = (b"Host: 127.0.0.1", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c")
    get = b"\r\n".join([b"GET /v1/models HTTP/1.1", *lines, b"", b""])
    length = b"Content-Length: %d" % len(body)
    post = b"\r\n".join([b"POST /chat/completions HTTP/1.1", *lines, length, b"", b""]) + body
    last = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = server.raw((get + post) * 20 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 41
    assert answer.count(b'"piped"') == 20
    assert b'"version"' in answer.rpartition(b"HTTP/1.1 200 OK")[2]


def test_offers_do_not_widen_the_bound_of_a_head(server):
    answer = server.raw(head(b"Connection: Upgrade", b"Upgrade: h2c", b"X: " + b"a" * 200_000))
    assert not answer or status_of(answer) in (400, 431)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "evil"])
def test_compressed_bodies_are_not_unpacked(server, encoding):
    """CVE-2024-12886: a small body that unpacks to gigabytes."""
    bomb = gzip.compress(b" " * 50_000_000 + CHAT) if encoding.startswith("gzip") else zlib.compress(b" " * 1_000_000)
    began = time.monotonic()
    status, body = server.post("/chat/completions", bomb, **{"content-encoding": encoding})
    assert status == 415
    assert error_of(body)["code"] == "unsupported_content_encoding"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "a" * 1000, "", "\xff"],
)
def test_content_types_change_nothing(server, kind):
    status, body = server.post("/chat/completions", CHAT, **{"content-type": kind})
    assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "hidden")


def test_pipelined_requests_are_answered_in_order(server):
    one = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = server.raw(one * 20 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 21
    assert answer.rstrip().endswith(b"}")
    assert b'"version"' in answer.rpartition(b"HTTP/1.1 200 OK")[2]


def test_a_client_that_leaves_at_once(server):
    for _ in range(30):
        with socket.create_connection((server.host, server.port), timeout=10) as connection:
            connection.sendall(head(b"Content-Length: %d" % len(CHAT)) + CHAT)


def test_a_client_that_never_reads(server):
    """Its stream is held back, and nobody else's."""
    body = json.dumps({"prompt": "loop:" + "x" * 100, "max_tokens": 50_000, "stream": True, "n": 4}).encode()
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head(b"Content-Length: %d" % len(body), start=b"POST /v1/completions HTTP/1.1") + body)
        server.check_alive()
