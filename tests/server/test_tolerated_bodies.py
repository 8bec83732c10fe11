"""What clients write that is not quite what was asked for, and is taken all the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer_app import peer_app

from caudal.server.problems import HTTPProblem
from caudal.server.request_body import parse_body


class Asked(msgspec.Struct):
    """A body."""

    count: int | None = None
    share: float = 0.0
    text: str = ""
    counts: list[int] = []


_decoder = msgspec.json.Decoder(Asked)


@given(st.integers(-(2**52), 2**52), st.text(), st.integers(0xD800, 0xDFFF))
def test_whole_numbers_and_half_characters(number, text, half):
    plain = msgspec.json.encode({"text": text}).decode()[:-2]
    body = f'{plain}\\u{half:04x}", "count": {number}.0, "counts": [{number}.0, 1], "share": 2.0}}'.encode()
    found = parse_body(body, _decoder)
    assert (found.count, found.counts, found.share) == (number, [number, 1], 2.0)
    assert found.text[:-1] == text
    assert found.text[-1] == "\ufffd"


@pytest.mark.parametrize(
    "body",
    [
        b'{"count": 10.5}',
        b'{"count": 1e300}',
        b'{"count": "10"}',
        b'{"text": "\\ud83d}',
        b'{"text": "\\ud83d", "count": 1.5}',
        b'{"text": "\xff"}',
        b"[" * 100_000 + b'"\\ud83d"' + b"]" * 100_000,
        b'{"x": ' + b"[" * 500 + b'"\\ud83d"' + b"]" * 499 + b"}",
    ],
)
def test_the_rest_is_refused(body):
    with pytest.raises(HTTPProblem) as refused:
        parse_body(body, _decoder)
    assert refused.value.problem.status == 400


async def test_a_text_that_ends_inside_a_character():
    async with peer_app() as http:
        body = (
            b'{"model": "org/Scripted:Q4", "messages": [{"role": "user", "content": "say:\\ud83d"}], "max_tokens": 8.0}'
        )
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert (await http.post(path, content=body)).status_code == 200
        ollama = body.replace(b'"max_tokens": 8.0', b'"options": {"num_predict": 8.0}')
        assert (await http.post("/api/chat", content=ollama)).status_code == 200


async def test_a_bias_too_large_for_a_number():
    async with peer_app() as http:
        body = b'{"prompt": "x", "logit_bias": [[5, 1%s]]}' % (b"0" * 400)
        assert (await http.post("/completion", content=body)).status_code == 400
