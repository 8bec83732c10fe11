"""A real server to attack, in processes of its own, over raw sockets or HTTP. It must answer afterwards."""

from __future__ import annotations

import http.client
import json
import os
import socket
from contextlib import contextmanager

from test_launch import Server

KEY = "open-sesame-0123456789"


class Target:
    """A running server."""

    def __init__(self, url, key=None, pid=None):
        self.url = url
        self.pid = pid
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.key = key

    def raw(self, data, timeout_s=10, *, then_close=False):
        """Send bytes on a connection of their own; return everything that comes until the server closes it."""
        with socket.create_connection((self.host, self.port), timeout=timeout_s) as connection:
            try:
                connection.sendall(data)
                if then_close:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused before all was sent
            return self.read(connection)

    def read(self, connection):
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except OSError:  # reset, because it had not read all that was sent
            pass
        return b"".join(parts)

    def ask(self, method, path, body=None, headers=None):
        """Send a request as it is, without a client's ideas of what a path or a header is; return status and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            sent = {"host": f"{self.host}:{self.port}", **(headers or {})}
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            if data is not None and "transfer-encoding" not in {name.lower() for name in sent}:
                sent = {"content-length": str(len(data)), **sent}
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(data)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, {**self.credentials(), **headers})

    def chat(self, content="say:fine", **fields):
        return self.post("/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def credentials(self):
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    def check_alive(self):
        """It answers a normal request, and says that it is well."""
        status, body = self.chat("say:still here")
        assert status == 200, body
        assert json.loads(body)["choices"][0]["message"]["content"] == "still here"
        assert self.ask("GET", "/health")[0] == 200


@contextmanager
def target(key=None, **settings):
    """Start a server."""
    if key is not None:
        settings["api_keys"] = [key]
    os.environ["SCRIPTED_SETTINGS"] = json.dumps(settings)
    try:
        server = Server(1)
    finally:
        del os.environ["SCRIPTED_SETTINGS"]
    with server:
        server.wait_ready()
        yield Target(server.url, key, server.process.pid)


def error_of(body):
    """The error of a body in OpenAI's shape."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def check_silent(body):
    """An answer tells nothing of the inside: no traceback, no file, no address, no class of Python."""
    for word in (
        b"Traceback",
        b'File "',
        b"/src/",
        b"/site-packages",
        b".py",
        b" object at 0x",
        b"Error:",
        b"msgspec.",
    ):
        assert word not in body, body
