"""A tiny hub on 127.0.0.1: as much of the Hugging Face hub's API as a pull asks for, with faults on order."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from caudal.hub import partial_file

COMMIT = "a" * 40


class TinyHub:
    """The hub.

    Attributes:
        repos: ORG/NAME -> file -> bytes.
        cut_after: bytes after which the next answers end too early, one for each.
        wrong: files of which other bytes are sent.
        resumes: whether ranges are honoured.
        hold_after: bytes of a file after which the hub waits until the test sets `go_on`; None does not wait.
        status: of every answer with a file's bytes, if it is not 200.
        requests: (path, range) of every file asked for.
    """

    def __init__(self):
        self.repos = {}
        self.commit = COMMIT
        self.cut_after = []
        self.wrong = set()
        self.extra_siblings = []
        self.resumes = True
        self.hold_after = None
        self.go_on = threading.Event()
        self.status = None
        self.gated = set()
        self.requests = []
        self.url = None

    def siblings(self, repo):
        for name, data in self.repos[repo].items():
            sha256 = hashlib.sha256(data).hexdigest()
            sibling = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}  # fmt: skip # noqa: E501
            if name.endswith(".gguf"):
                sibling["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
            yield sibling
        yield from self.extra_siblings


class Handler(BaseHTTPRequestHandler):
    hub = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            self.tell(path.removeprefix("/api/models/"))
        elif "/resolve/" not in path:
            self.refuse(404, "")
        else:
            repo, _, file = path.lstrip("/").partition("/resolve/")
            self.send_file(repo, file.partition("/")[2])

    def tell(self, repo):
        if repo in self.hub.gated:
            self.refuse(403, "GatedRepo")
        elif repo not in self.hub.repos:
            self.refuse(404, "RepoNotFound")
        else:
            body = {"id": repo, "modelId": repo, "sha": self.hub.commit, "siblings": list(self.hub.siblings(repo))}
            self.send(200, json.dumps(body).encode())

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("x-error-code", code)
        self.send_header("content-length", "0")
        self.end_headers()

    def send(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, repo, file):
        asked = self.headers.get("range")
        self.hub.requests.append((file, asked))
        if self.hub.status is not None:
            self.refuse(self.hub.status, "")
            return
        data = self.hub.repos[repo][file]
        if file in self.hub.wrong:
            data = bytes(byte ^ 1 for byte in data)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.hub.resumes else 0
        rest = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("content-length", str(len(rest)))
        self.end_headers()
        if self.hub.cut_after:
            self.wfile.write(rest[: self.hub.cut_after.pop(0)])
            self.close_connection = True
        elif self.hub.hold_after is not None:
            self.wfile.write(rest[: self.hub.hold_after])
            self.hub.go_on.wait(30)
            with suppress(OSError):  # whoever asked may have gone
                self.wfile.write(rest[self.hub.hold_after :])
        else:
            self.wfile.write(rest)


@contextmanager
def tiny_hub():
    """A running hub."""
    hub = TinyHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(hub, cache, monkeypatch):
    """Let pulls ask this hub and fill this cache, without waits between attempts."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("caudal.hub.resolve.DEMO_PACKAGE", "a_demo_that_is_not_installed")
    monkeypatch.setattr(partial_file, "_FIRST_WAIT_S", 0.0)
    hub.cache = cache
