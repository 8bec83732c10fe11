"""Who gets in: keys, paths, hosts, origins. Classes: CVE-2026-48746, CVE-2025-59425, CVE-2024-28224, CVE-2025-63389."""

from __future__ import annotations

import hashlib
import hmac
import json
import re

import pytest
from attacks import KEY, check_silent, target

from caudal.server.keys.accounts import Accounts
from caudal.server.routes import described_routes
from caudal.server.settings import ServerSettings

OPEN = {"/", "/health", "/v1/health", "/ping"}
PARAMETER = re.compile(r"\{[^}]*\}")
GUARDED = sorted({(row.method, row.path) for row in described_routes() if row.path not in OPEN})


@pytest.fixture(scope="module")
def locked():
    with target(KEY) as server:
        yield server


@pytest.fixture(scope="module")
def local():
    with target() as server:
        yield server


@pytest.fixture(autouse=True)
def alive(request):
    yield
    for name in ("locked", "local"):
        if name in request.fixturenames:
            request.getfixturevalue(name).check_alive()


def test_every_route_but_the_liveness_ones_wants_a_key(locked):
    """The documented gap of vLLM: routes outside its guarded prefixes."""
    assert len(GUARDED) > 12
    for method, path in GUARDED:
        status, body = locked.ask(method, PARAMETER.sub("x", path), b"{}")
        assert status == 401, (method, path)
        check_silent(body)
        if method != "HEAD":
            assert json.loads(body)["error"]


def test_unknown_routes_tell_nothing_without_a_key(locked):
    for path in ("/admin", "/debug/pprof", "/.env", "/v1/keys", "/api/pull", "/docs", "/server_info", "/v2"):
        assert locked.ask("GET", path)[0] == 401, path


def test_open_routes_answer_and_say_little(locked):
    for path in sorted(OPEN):
        status, body = locked.ask("GET", path)
        assert status == 200
        assert len(body) < 100


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1//models",
        "/./v1/models",
        "/health/../v1/models",
        "/health/..%2fv1/models",
        "/health%2f..%2fv1%2fmodels",
        "/%2e%2e/v1/models",
        "/v1%2fmodels",
        "/%76%31/models",
        "/v1/models/",
        "/v1/models;/health",
        "/v1/models?/health",
        "/v1/models%00/health",
        "/v1/models%3f/health",
        "/v1/models#/health",
        "/V1/MODELS",
        "/health;/v1/models",
        "/health/v1/models",
        "/ping//../metrics",
        "/metrics/",
        "//metrics",
        "/\\v1\\models",
    ],
)
def test_no_spelling_of_a_path_goes_around_the_key(locked, path):
    """CVE-2026-48746: the check saw another path than the router."""
    status, body = locked.ask("GET", path)
    assert status in (400, 401), body
    assert b"scripted" not in body


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://evil.example/v1/models HTTP/1.1",
        b"GET http://127.0.0.1/health/../v1/models HTTP/1.1",
        b"GET /v1/models HTTP/1.0",
        b"GET //health//../v1/models HTTP/1.1",
        b"HEAD /v1/models HTTP/1.1",
        b"TRACE /v1/models HTTP/1.1",
    ],
)
def test_no_form_of_a_request_line_goes_around_the_key(locked, line):
    answer = locked.raw(line + b"\r\nHost: health\r\nConnection: close\r\n\r\n")
    assert answer.split()[1] in (b"400", b"401"), answer
    assert b"scripted" not in answer


@pytest.mark.parametrize("host", ["/health", "127.0.0.1/health?", "x#/health", "health", "a/../health", "", "@health"])
def test_no_host_header_goes_around_the_key(locked, host):
    """CVE-2026-48746 in its own form."""
    assert locked.ask("GET", "/v1/models", headers={"host": host})[0] in (400, 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-http-method-override": "OPTIONS"},
        {"x-method-override": "OPTIONS"},
        {"x-original-url": "/health"},
        {"x-rewrite-url": "/health"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-prefix": "/health"},
        {"forwarded": "for=127.0.0.1"},
        {"cookie": f"api_key={KEY}"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer None"},
        {"x-api-key": ""},
        {"x-api-key": "*"},
        {"x-request-id": KEY},
        {"proxy-authorization": f"Bearer {KEY}"},
        {"authorization": b"Bearer \xff\xfe\x00".decode("latin-1").replace("\0", "")},
    ],
)
def test_no_other_header_is_a_key(locked, headers):
    assert locked.ask("GET", "/v1/models", headers=headers)[0] == 401


def test_a_key_in_the_url_is_no_key(locked):
    for query in (f"api_key={KEY}", f"key={KEY}", f"access_token={KEY}"):
        assert locked.ask("GET", f"/v1/models?{query}")[0] == 401


def test_options_reaches_no_handler(locked):
    """OPTIONS passes the key check for CORS's sake."""
    for method, path in GUARDED:
        status, body = locked.ask("OPTIONS", PARAMETER.sub("x", path))
        assert status in (200, 401, 404, 405), (method, path)
        assert b"scripted" not in body


def test_keys_are_compared_as_digests_of_one_length(monkeypatch, tmp_path):
    """CVE-2025-59425: the time of a comparison told how much of a key was right."""
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    accounts = Accounts(ServerSettings(api_keys=(KEY, "other"), state_dir=tmp_path))
    assert accounts.find([KEY]) is not None
    accounts.close()
    assert {len(a) for pair in compared for a in pair} == {hashlib.sha256().digest_size}
    assert len({known for known, _ in compared}) == 2  # both keys were compared, although the first was right


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost.evil.example"},
        {"host": "169.254.169.254"},
        {"host": "[::ffff:7f00:1].evil"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "http://127.0.0.1@evil.example"},
        {"origin": "file://"},
        {"host": "evil.example", "origin": "http://127.0.0.1"},
    ],
)
def test_foreign_pages_and_rebound_names_get_nothing(local, headers):
    """CVE-2024-28224, and pages that post to a port of their visitor's machine."""
    body = {"messages": [{"role": "user", "content": "say:leak"}]}
    for method, path, data in (("POST", "/v1/chat/completions", body), ("GET", "/v1/models", None)):
        status, answer = local.ask(method, path, data, headers)
        assert status == 403, answer
        assert b"leak" not in answer
        assert b"scripted" not in answer


def test_no_origin_is_ever_reflected(local, locked):
    for server in (local, locked):
        for origin in (
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
            "http://localhost@evil.example",
        ):
            request = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
            assert b"access-control-allow" not in server.raw(request.encode()).lower()


def test_simple_requests_of_a_page_are_refused(local):
    """A form may post text/plain to another origin without asking first."""
    headers = {"origin": "https://evil.example", "content-type": "text/plain"}
    assert local.ask("POST", "/v1/completions", b'{"prompt":"say:x"}', headers)[0] == 403
