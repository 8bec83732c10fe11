"""What a request may contain. Classes: CVE-2024-8768, CVE-2026-34756, CVE-2026-73559, CVE-2026-21869."""

from __future__ import annotations

import json

import msgspec
import pytest
from attacks import check_silent, error_of, target

from caudal.server.openai.chat_protocol import ChatRequest
from caudal.server.openai.completion_protocol import CompletionRequest

NUMBERS = ("-1", "-0.0", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "9" * 400, "1e-400", "0.1", "2147483648")
NUMBERS += ("9223372036854775808", "-9223372036854775809", "1" + "0" * 5000, '"1"', "true", "[]", "{}", "null", '""')


@pytest.fixture(scope="module")
def server():
    with target(max_open_requests=32) as found:
        yield found


@pytest.fixture(autouse=True)
def alive(server):
    yield
    server.check_alive()


def fields_of(struct):
    """Every field that may hold a number, or a list or dict of them."""
    return sorted(field.name for field in msgspec.structs.fields(struct) if field.name not in ("model", "messages"))


def answers(server, path, data):
    """Post and check what every answer must be; return its status."""
    status, body = server.post(path, data)
    assert status == 200 or len(body) < 10_000  # nobody gets back what they sent, at any length
    assert status in (200, 400, 404, 413, 422, 429), (status, body[:500], data[:200])
    check_silent(body)
    if status != 200:
        assert error_of(body)["message"]
    return status


@pytest.mark.parametrize("field", fields_of(ChatRequest))
def test_every_field_of_a_chat_with_every_odd_number(server, field):
    """CVE-2026-21869: a negative count. And all its relatives."""
    for number in NUMBERS:
        for value in (number, f"[{number}]", f'{{"5": {number}}}'):
            data = f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 3, "{field}": {value}}}'
            answers(server, "/chat/completions", data.encode())


@pytest.mark.parametrize("field", fields_of(CompletionRequest))
def test_every_field_of_a_completion_with_every_odd_number(server, field):
    for number in NUMBERS:
        for value in (number, f"[{number}]", f'{{"5": {number}}}'):
            data = f'{{"prompt": "say:x", "max_tokens": 3, "{field}": {value}}}'
            answers(server, "/v1/completions", data.encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 10**6},
        {"n": 128, "max_tokens": 10},
        {"best_of": 10**9},
        {"stop": ["x"] * 100_000},
        {"stop": ["x" * 1_000_000]},
        {"stop_token_ids": [1] * 100_000},
        {"logit_bias": {str(i): 1 for i in range(100_000)}},
        {"logit_bias": {"5": 1e38}},
        {"logit_bias": {"-5": 1}},
        {"logprobs": True, "top_logprobs": 10**9},
        {"max_tokens": 10**18},
        {"min_tokens": 10**9},
        {"messages": [{"role": "user", "content": ""}] * 50_000},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 50_000}]},
        {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(20_000)]},
        {"user": "x" * 1_000_000},
        {"metadata": {str(i): "x" for i in range(50_000)}},
        {"cache_salt": "x" * 1_000_000},
        {"model": "x" * 1_000_000},
        {"priority": -(2**63)},
    ],
    ids="-".join,
)
def test_too_much_of_something(server, fields):
    """CVE-2026-34756: huge n. CVE-2026-73559: fan-out before admission."""
    body = {"messages": [{"role": "user", "content": "say:x"}], **fields}
    answers(server, "/chat/completions", json.dumps(body).encode())


@pytest.mark.parametrize(
    "prompt",
    [
        ["x"] * 100_000,
        [[1]] * 100_000,
        [[]] * 1000,
        [],
        "",
        [[2**31]],
        [[-1]],
        [[2**63]],
        [10**30],
        [1.5],
        [None],
        [1, "x"],
        [[[1]]],
        list(range(256)) * 1000,
    ],
    ids=lambda prompt: f"{str(prompt)[:20]}-{len(prompt)}",
)
def test_prompts(server, prompt):
    """CVE-2024-8768: an empty prompt ended the engine. PYSEC-2026-4350: ids outside the vocabulary."""
    status = answers(server, "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1}).encode())
    if prompt != "":  # which is one token: the beginning of text
        assert status != 200


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 500_000,
        b'{"a":' * 500_000,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f","parameters":'
        + b'{"a":' * 900
        + b"1"
        + b"}" * 900
        + b"}}]}",
        b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
    ],
    ids=["arrays", "objects", "messages", "ignored", "tools", "variables"],
)
def test_nesting(server, data):
    """CVE-2026-2069 and the stack overflows of JSON readers."""
    answers(server, "/chat/completions", data)
    answers(server, "/tokenize", data)


@pytest.mark.parametrize(
    "text",
    [
        rb"\ud800",
        rb"\udc00\ud800",
        rb"\u0000",
        rb"a\u0000b",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\x00",
        b"\n",
        rb"\x41",
        rb"\u12",
        "\u202e\u2066\ufeff\U000e0041".encode(),
        "🏴".encode() * 1000,
        "a\u0300".encode() * 5000,
    ],
    ids=range(15),
)
def test_text_that_is_no_text(server, text):
    body = b'{"messages":[{"role":"user","content":"' + text + b'"}],"max_tokens":2}'
    answers(server, "/chat/completions", body)
    answers(server, "/v1/completions", b'{"max_tokens":2,"prompt":"' + text + b'"}')
    answers(server, "/v1/completions", b'{"max_tokens":2,"prompt":"x","stop":["' + text + b'"]}')
    answers(server, "/chat/completions", b'{"model":"' + text + b'","messages":[]}')
    answers(server, "/tokenize", b'{"prompt":"' + text + b'"}')


def test_duplicate_keys_are_read_one_way(server):
    """Two readers of one body must not differ: the last value counts, as in every JSON reader that clients have."""
    status, body = server.post("/v1/completions", b'{"prompt":"say:first","prompt":"say:last","max_tokens":20}')
    assert status == 200
    assert json.loads(body)["choices"][0]["text"] == "last"
    answers(server, "/v1/completions", b'{"prompt":"x","max_tokens":-1,"max_tokens":1}')


def test_a_text_with_many_tokens_does_not_stop_the_others(server):
    status, body = server.post("/tokenize", {"prompt": "x " * 1_000_000})
    assert status == 200
    assert json.loads(body)["count"] > 1_000_000


@pytest.mark.parametrize("tokens", [[2**31], [-1], [10**30], [1.5], "x", [None], [[1]], [260]])
def test_detokenize(server, tokens):
    assert answers(server, "/detokenize", json.dumps({"tokens": tokens}).encode()) == 400


def test_a_model_name_is_no_file_name(server):
    """CVE-2024-39719, CVE-2024-37032: a name that was used as a path."""
    for name in (
        "/etc/passwd",
        "../../etc/passwd",
        "..\\..\\x",
        "\0",
        "sha256:../../x",
        "file:///etc/passwd",
        "~",
        ".",
    ):
        status, body = server.chat(model=name)
        assert status == 404
        assert b"root:" not in body
        assert server.ask("GET", "/v1/models/" + name.replace("\0", "%00"))[0] == 404


def test_a_client_names_nothing_in_the_engine(server):
    """CVE-2026-105755, CVE-2026-116176: X-Request-Id was a key, and even an address."""
    bodies = [server.chat(f"say:{i}", request_id="same")[1] for i in range(3)]
    assert len({json.loads(body)["id"] for body in bodies}) == 3
    for value in ("same", "same", "___prefill_addr_evil.example:80", "../../x", "x" * 5000, "a b", "%s%n"):
        status, body = server.post(
            "/chat/completions",
            {"messages": [{"role": "user", "content": "say:mine"}]},
            **{"x-request-id": value, "x-correlation-id": value, "x-session-id": value},
        )
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"] == "mine"
        assert value not in json.loads(body)["id"]


@pytest.mark.parametrize(
    "field",
    [
        "kv_transfer_params",
        "allowed_token_ids",
        "bad_words",
        "prompt_embeds",
        "logits_processors",
        "mm_processor_kwargs",
    ],
)
def test_fields_of_other_engines_do_nothing(server, field):
    """CVE-2026-94626, CVE-2025-62164, CVE-2026-7304: what clients could once pass to the inside."""
    for value in ({"remote_host": "evil.example", "x": [1]}, ["gASVIQAAAA=="], "gASVIQAAAA=="):
        answers(server, "/v1/completions", json.dumps({"prompt": "say:x", field: value}).encode())


def test_a_failing_step_tells_nothing_of_the_inside(server):
    """CVE-2026-22778: an error message told an address."""
    status, body = server.chat("crash")
    assert status == 500
    check_silent(body)
