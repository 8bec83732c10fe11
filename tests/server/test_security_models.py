"""Attacks on a server that lets clients change its models: names, links in the way, hostile hubs, floods, leavers."""

from __future__ import annotations

import json
import signal
import threading
import time

import httpx
import pytest
from attacks import KEY, Target, check_silent, target
from managed_app import fill, tiny_gguf
from test_launch import Server
from test_many_models_http import wait_for
from tiny_hub import tiny_hub, use_hub

LFS = {"pointerSize": 1}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, tiny_hub() as hub:
        place = tmp_path_factory.mktemp("place")
        use_hub(hub, place / "hub", patch)
        for name in ("models", "outside"):
            (place / name).mkdir()
        (place / "scripted.gguf").write_bytes(tiny_gguf())
        (place / "outside/secret.gguf").write_bytes(tiny_gguf())
        (place / "models/victim.gguf").write_bytes(tiny_gguf())
        patch.setenv("SCRIPTED_MODELS_DIR", str(place / "models"))
        hub.place = place
        yield fill(hub)


@pytest.fixture(scope="module")
def server(hub):
    with target() as server:
        yield server


@pytest.fixture(scope="module")
def locked(hub):
    with target(KEY) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_is_lost(request, hub):
    """Whatever was tried, the server answers, and nothing outside of the folder has come, gone or changed."""
    before = tree(hub)
    hub.hold_after = None
    hub.go_on.clear()
    yield
    hub.go_on.set()
    hub.extra_siblings.clear()
    for name in ("server", "locked"):
        if name in request.fixturenames:
            request.getfixturevalue(name).check_alive()
    assert tree(hub) == before
    assert (hub.place / "outside/secret.gguf").read_bytes() == tiny_gguf()


def tree(hub):
    """All but the cache, in which interrupted downloads may stay."""
    return sorted(str(path) for path in hub.place.rglob("*") if not path.is_relative_to(hub.cache))


def pull(server, name, *, stream=False):
    return server.post("/api/pull", {"model": name, "stream": stream})


def delete(server, name):
    return server.ask("DELETE", "/api/delete", {"model": name}, server.credentials())


NAMES = [
    "../outside/secret",
    "../scripted",
    "models/../../outside/secret",
    "/etc/passwd",
    "//etc/passwd",
    "..\\outside\\secret",
    "..%2foutside%2fsecret",
    "victim.gguf/../../outside/secret",
    "victim\0.gguf",
    "file:///etc/passwd",
    "~/secret",
    "$HOME/secret",
    "org/m/../../../outside/secret.gguf",
    "hf.co/../outside/secret.gguf",
    "\u202egguf.mitciv",
    "*",
    "vict?m",
    "victim-00001-of-00001",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_folder(server, hub, name):
    for status, body in (
        pull(server, name),
        delete(server, name),
        server.post("/api/copy", {"source": name, "destination": "x"}),
        server.post("/api/chat", {"model": name, "messages": []}),
    ):
        assert status in (400, 404), body
        check_silent(body)
        assert str(hub.place).encode() not in body


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("$HOME/secret", "*", "vict?m")])
def test_no_copy_is_put_elsewhere(server, name):
    status, body = server.post("/api/copy", {"source": "victim", "destination": name})
    assert status == 400, body
    check_silent(body)


@pytest.mark.parametrize("name", ["*", "vict?m", "[victim]", "{a,b}", "%n%s", "-rf", "a;b", "$(touch x)", "'\"`"])
def test_names_that_mean_something_to_shells_and_globs_are_names(server, name):
    assert server.post("/api/copy", {"source": "victim", "destination": name})[0] == 200
    assert name.encode() in server.ask("GET", "/api/tags")[1].replace(b'\\"', b'"')
    assert delete(server, name)[0] == 200
    assert b'"victim:latest"' in server.ask("GET", "/api/tags")[1]


def test_links_in_the_folder_are_no_way_out(server, hub):
    """Somebody who may write into the folder has put a link to another one there."""
    link = hub.place / "models/org"
    link.symlink_to(hub.place / "outside", target_is_directory=True)
    try:
        time.sleep(1.1)  # until the server looks again
        assert b"secret" not in server.ask("GET", "/api/tags")[1]
        assert delete(server, "org/secret")[0] == 404
        assert server.post("/api/copy", {"source": "org/secret", "destination": "x"})[0] == 404
        status, body = pull(server, "org/m")
        assert (status, "links are not followed" in body.decode()) == (500, True)
        assert sorted(path.name for path in (hub.place / "outside").iterdir()) == ["secret.gguf"]
    finally:
        link.unlink()


def test_a_model_that_is_a_link_to_a_file_outside_is_deleted_as_a_link(server, hub):
    link = hub.place / "models/linked.gguf"
    link.symlink_to(hub.place / "outside/secret.gguf")
    time.sleep(1.1)
    assert delete(server, "linked")[0] == 200
    assert not link.is_symlink()


def test_links_in_a_circle_disturb_nobody(server, hub):
    for name, other in (("a", "b"), ("b", "a")):
        (hub.place / f"models/{name}.gguf").symlink_to(f"{other}.gguf")
    try:
        time.sleep(1.1)
        status, body = server.post("/api/copy", {"source": "victim", "destination": "a"})
        assert status in (409, 500), body
        check_silent(body)
    finally:
        for name in ("a", "b"):
            (hub.place / f"models/{name}.gguf").unlink()


def test_the_servers_own_models_are_not_theirs_to_delete(server):
    for name in ("scripted", "SCRIPTED:latest", "scripted.gguf"):
        assert delete(server, name)[0] == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "//api/delete"),
        ("DELETE", "/api//delete/"),
        ("DELETE", "/api/./delete"),
        ("DELETE", "/health/../api/delete"),
        ("DELETE", "/API/DELETE"),
        ("DELETE", "/api%2fdelete"),
        ("DELETE", "/v1/api/delete"),
        ("POST", "/api/delete"),
        ("GET", "/api/delete"),
        ("OPTIONS", "/api/delete"),
        ("DELETE", "/api/delete?api_key=" + KEY),
    ],
)
def test_no_spelling_deletes_without_a_key(locked, method, path):
    override = {"x-http-method-override": "DELETE", "x-original-url": "/health"}
    status, body = locked.ask(method, path, {"model": "victim"}, override)
    assert status in (400, 401, 404, 405), body


def test_pages_of_others_change_nothing(server):
    """A form may post text/plain to another origin without asking first; DELETE asks, and gets no leave."""
    for headers in ({"origin": "https://evil.example", "content-type": "text/plain"}, {"host": "evil.example"}):
        assert server.ask("POST", "/api/pull", {"model": "org/m"}, headers)[0] == 403
        assert server.ask("POST", "/api/copy", {"source": "victim", "destination": "x"}, headers)[0] == 403
        assert server.ask("DELETE", "/api/delete", {"model": "victim"}, headers)[0] == 403
    status, body = server.ask(
        "OPTIONS", "/api/delete", None,
        {"origin": "https://evil.example", "access-control-request-method": "DELETE"},
    )  # fmt: skip
    assert (status, body) == (400, b"Disallowed CORS origin")


@pytest.mark.parametrize(
    ("sibling", "status"),
    [
        ({"rfilename": "../../../../models/evil.gguf", "size": 9, "lfs": {**LFS, "size": 9, "sha256": "0" * 64}}, 404),
        ({"rfilename": "/etc/evil.gguf", "size": 9, "lfs": {**LFS, "size": 9, "sha256": "0" * 64}}, 404),
        ({"rfilename": "x.gguf", "size": 9, "lfs": {**LFS, "size": 9, "sha256": "../../../evil"}}, 404),
        ({"rfilename": "x.gguf", "size": -1, "lfs": {**LFS, "size": -1, "sha256": "0" * 64}}, 404),
        ({"rfilename": "x.gguf", "size": 1 << 62, "lfs": {**LFS, "size": 1 << 62, "sha256": "0" * 64}}, 507),
        ({"rfilename": "x.gguf", "size": 9, "lfs": {**LFS, "size": 9, "sha256": "0" * 64}}, 502),
    ],
)  # fmt: skip
def test_a_hostile_hub_brings_nothing(server, hub, sibling, status):
    """Names and digests that lead out, sizes that fill the disk, bytes that are not those that were promised."""
    hub.repos["org/evil"] = {}
    hub.extra_siblings = [{"blobId": "0" * 40, **sibling}]
    hub.repos["org/evil"] = Bytes()
    answered, body = pull(server, "org/evil")
    assert answered == status, body
    check_silent(body)
    assert not list(hub.place.rglob("*evil*.gguf"))


class Bytes(dict):
    """A repository that lists no files of its own and sends a megabyte for any."""

    def __missing__(self, _name):
        return bytes(1 << 20)


def test_a_flood_of_pulls_is_told_to_wait(server, hub):
    hub.hold_after = 0
    for number in range(30):
        hub.repos[f"org/flood{number}"] = {"x.gguf": tiny_gguf() + b"%d" % number}
    answers = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(pull(server, f"org/flood{number}", stream=True)))
        for number in range(30)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(answers) == 28)
    server.check_alive()
    hub.go_on.set()
    for thread in threads:
        thread.join(20)
    assert sorted(status for status, _ in answers) == [200] * 2 + [429] * 28
    for number in range(30):
        delete(server, f"org/flood{number}")


def test_who_leaves_ends_a_download_that_nobody_else_waits_for(server, hub):
    hub.repos["org/left"] = {"x.gguf": tiny_gguf() + b"left"}
    hub.hold_after = 100_000
    hub.requests.clear()
    with httpx.stream("POST", f"{server.url}/api/pull", json={"model": "org/left"}, timeout=20) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines)) == {"status": "pulling manifest"}
        assert any(json.loads(line)["completed"] for line in lines)  # now its thread waits for the hub
    wait_for(lambda: is_ending(server, "org/left"))
    hub.go_on.set()
    wait_for(lambda: pull(server, "org/left")[0] == 200)
    assert len(hub.requests) == 2
    assert hub.requests[1][1] is not None  # it went on
    assert delete(server, "org/left")[0] == 200


def is_ending(server, name):
    try:
        response = httpx.post(f"{server.url}/api/pull", json={"model": name, "stream": False}, timeout=0.5)
    except httpx.ReadTimeout:  # it has joined those who wait, and has left now
        return False
    return response.status_code == 429 and "just being ended" in response.json()["error"]


def test_leavers_do_not_hold_up_others(server, hub):
    hub.repos["org/many"] = {"x.gguf": tiny_gguf() + b"many"}
    hub.hold_after = 0
    for _ in range(20):
        with httpx.stream("POST", f"{server.url}/api/pull", json={"model": "org/many"}, timeout=20):
            pass
    hub.go_on.set()
    wait_for(lambda: pull(server, "org/many")[0] == 200)
    assert delete(server, "org/many")[0] == 200


def test_a_signal_ends_a_pull_and_tells_who_waits(hub):
    hub.repos["org/signal"] = {"x.gguf": tiny_gguf() + b"signal"}
    hub.hold_after = 1000
    with Server(30) as process:
        server = Target(process.wait_ready().url)
        with httpx.stream("POST", f"{server.url}/api/pull", json={"model": "org/signal"}, timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            began = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            *_, last = lines
        assert "shutting down; pull again" in json.loads(last)["error"]
        assert process.process.wait(10) == 0
        assert time.monotonic() - began < 8
    hub.go_on.set()
    assert [path.name for path in (hub.place / "models").iterdir()] == ["victim.gguf"]
