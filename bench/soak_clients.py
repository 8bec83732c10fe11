"""The soak's clients: what they send, and how they judge that a request has ended, exactly once.

A request ends in one of four ways: it is finished (the API's own last word came, once), refused (4xx), failed (an
error of the server's), or cancelled (we left). Anything else is a Violation: an answer that stops without a last word,
or has two, or takes for ever, or a refusal of what is good, or an answer to what is bad.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable

    Body = dict[str, Any]

WORDS = ("river", "stone", "light", "market", "garden", "letter", "music", "winter", "number", "table", "animal")
ANSWER_S = 120.0
"""Longer than any answer here takes, with the engine killed and loaded in the meantime."""
_TLS = ssl.create_default_context()  # made once: that takes longer than a request


class Violation(Exception):
    """Something that must not happen."""


@dataclass(frozen=True)
class Api:
    """One way of asking for an answer.

    Attributes:
        path: where to post.
        body: makes a body of a prompt, an answer's length, and whether to stream.
        end: one match for each last word of a stream.
        error: one match for each error in a stream.
        whole: what a whole answer has exactly once.
    """

    path: str
    body: Callable[[str, int, bool], Body]
    end: re.Pattern[bytes]
    error: re.Pattern[bytes]
    whole: re.Pattern[bytes]


def chat_body(prompt: str, length: int, stream: bool) -> Body:  # noqa: FBT001 - one shape for all APIs
    """Return the body that three APIs understand."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": "soak", "messages": messages, "max_tokens": length, "stream": stream}


def completion_body(prompt: str, length: int, stream: bool) -> Body:  # noqa: FBT001 - the same
    """Return a body for plain completions."""
    return {"model": "soak", "prompt": prompt, "max_tokens": length, "stream": stream}


def response_body(prompt: str, length: int, stream: bool) -> Body:  # noqa: FBT001 - the same
    """Return a body for the Responses API, which stores nothing."""
    return {"model": "soak", "input": prompt, "max_output_tokens": length, "stream": stream, "store": False}


def ollama_body(prompt: str, length: int, stream: bool) -> Body:  # noqa: FBT001 - the same
    """Return a body for Ollama's chat."""
    body = {"model": "soak", "messages": [{"role": "user", "content": prompt}], "stream": stream}
    return {**body, "options": {"num_predict": length}}


def llama_body(prompt: str, length: int, stream: bool) -> Body:  # noqa: FBT001 - the same
    """Return a body for llama-server's completion."""
    return {"prompt": prompt, "n_predict": length, "stream": stream}


def patterns(*texts: str) -> tuple[re.Pattern[bytes], ...]:
    """Compile patterns that are looked for in each line."""
    return tuple(re.compile(text.encode()) for text in texts)


_SSE_ERROR = r'^data: \{"error":'
_DONE, _FINISHED = r"^data: \[DONE\]", r'"finish_reason":"\w'
_RESPONSE_END, _RESPONSE_ERROR = r"^event: response\.(completed|incomplete)", r"^event: (response\.failed|error)"
APIS = {
    "chat": Api("/v1/chat/completions", chat_body, *patterns(_DONE, _SSE_ERROR, _FINISHED)),
    "completion": Api("/v1/completions", completion_body, *patterns(_DONE, _SSE_ERROR, _FINISHED)),
    "messages": Api(
        "/v1/messages", chat_body, *patterns(r"^event: message_stop", r"^event: error", r'"stop_reason":"\w')
    ),
    "responses": Api("/v1/responses", response_body, *patterns(_RESPONSE_END, _RESPONSE_ERROR, r'"object":"response"')),
    "ollama": Api("/api/chat", ollama_body, *patterns(r'"done":true', r'^\{"error":', r'"done":true')),
    "llama": Api("/completion", llama_body, *patterns(r'"stop":true', _SSE_ERROR, r'"stop":true')),
}
BAD_BODIES: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"null", b'"text"', b'{"model": 5}', b"\xff\xfe{}", b"[" * 100_000,
    b'{"model": "soak", "messages": "text", "prompt": {}, "input": 5}',
    b'{"model": "soak", "messages": [{"role": 5, "content": {}}], "prompt": [[["x"]]], "input": [[]]}',
    (b'{"model": "soak", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "options": 5,'
     b' "temperature": "hot", "max_tokens": "many", "max_output_tokens": "many", "n_predict": []}'),
)  # fmt: skip


@dataclass
class Tally:
    """How requests ended, and what must not happen.

    Attributes:
        begun: requests by kind.
        ended: by kind, then by how they ended.
        violations: sentences.
    """

    begun: dict[str, int] = field(default_factory=dict)
    ended: dict[str, dict[str, int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def begin(self, kind: str) -> None:
        """Count a request that is sent now."""
        self.begun[kind] = self.begun.get(kind, 0) + 1

    def end(self, kind: str, how: str) -> None:
        """Count its end."""
        ways = self.ended.setdefault(kind, {})
        ways[how] = ways.get(how, 0) + 1

    def unbalanced(self) -> list[str]:
        """Return the kinds whose requests did not each end once."""
        return [kind for kind, count in self.begun.items() if sum(self.ended.get(kind, {}).values()) != count]


class Client:
    """Sends one request after the other, of every kind, until it is stopped.

    Args:
        url: the server's.
        apis: names of APIS that it has.
        seed: chooses what is sent.
        tally: where ends are counted.
        engine_may_fail: says whether the engine has just been killed.
        max_model_len: of the model; more is an overflow.
    """

    def __init__(
        self,
        url: str,
        apis: list[str],
        *,
        seed: int,
        tally: Tally,
        engine_may_fail: Callable[[float], bool],
        max_model_len: int,
    ) -> None:
        self._url = url
        self._apis = apis
        self._random = random.Random(seed)  # noqa: S311 - what is sent need not be secret
        self._tally = tally
        self._engine_may_fail = engine_may_fail
        self._too_long = max_model_len + 16

    async def run(self, until_s: float) -> None:
        """Send requests until a moment of the loop's clock."""
        kinds = (self._answer, self._answer, self._leave, self._leave, self._overflow, self._malformed)
        limits = httpx.Limits(max_connections=4, keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=self._url, timeout=ANSWER_S, limits=limits) as http:
            while asyncio.get_running_loop().time() < until_s:
                kind = self._random.choice(kinds)
                name = kind.__name__.strip("_")
                api = self._random.choice(self._apis)
                self._tally.begin(name)
                try:
                    how = await asyncio.wait_for(kind(http, APIS[api]), ANSWER_S)
                except (Violation, httpx.HTTPError, TimeoutError) as error:
                    when = f"client {id(self):x} at {asyncio.get_running_loop().time():.0f} s"
                    self._tally.violations.append(f"{name} {api}, {when}: {type(error).__name__}: {error}"[:500])
                    how = "violation"
                self._tally.end(name, how)
                if how == "failed":
                    await asyncio.sleep(0.5)

    def _prompt(self, num_words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=num_words))

    def _check_status(self, status: int, begun_s: float, text: bytes) -> str:
        """Return how a request that got no answer ended."""
        if status in (429, 503) or (status == 500 and b"engine" in text):
            if self._engine_may_fail(begun_s):
                return "failed"
            message = f"HTTP {status} although the engine has not been killed: {text[:200]!r}"
            raise Violation(message)
        message = f"HTTP {status}: {text[:200]!r}"
        raise Violation(message)

    async def _answer(self, http: httpx.AsyncClient, api: Api) -> str:
        """Read an answer to its end."""
        begun_s = asyncio.get_running_loop().time()
        stream = self._random.random() < 0.7
        body = api.body(self._prompt(self._random.randint(1, 120)), self._random.randint(1, 64), stream)
        if not stream:
            response = await http.post(api.path, json=body)
            if response.status_code != 200:
                return self._check_status(response.status_code, begun_s, response.content)
            if len(api.whole.findall(response.content)) != 1:
                message = f"a whole answer without its one end: {response.content[-300:]!r}"
                raise Violation(message)
            return "finished"
        ends = errors = 0
        last = b""
        async with http.stream("POST", api.path, json=body) as response:
            if response.status_code != 200:
                return self._check_status(response.status_code, begun_s, await response.aread())
            async for line in response.aiter_lines():
                data = line.encode()
                ends += len(api.end.findall(data))
                errors += len(api.error.findall(data))
                last = data or last
        if errors == 1 and ends == 0 and self._engine_may_fail(begun_s):
            return "failed"
        if (ends, errors) != (1, 0):
            message = f"a stream with {ends} ends and {errors} errors, of which the last line is {last[-300:]!r}"
            raise Violation(message)
        return "finished"

    async def _leave(self, _http: httpx.AsyncClient, api: Api) -> str:
        """Go away before the answer is complete: at once, or after some of a stream.

        With connections of its own: a pool that is cancelled while it connects may never give its place back.
        """
        async with httpx.AsyncClient(base_url=self._url, timeout=ANSWER_S, verify=_TLS) as own:
            return await self._leave_with(own, api)

    async def _leave_with(self, http: httpx.AsyncClient, api: Api) -> str:
        begun_s = asyncio.get_running_loop().time()
        body = api.body(self._prompt(self._random.randint(1, 300)), 400, self._random.random() < 0.7)
        wait_s = self._random.choice((0.0, 0.05, 0.3, 1.0))
        try:
            async with asyncio.timeout(wait_s or 0.001):
                async with http.stream("POST", api.path, json=body) as response:
                    if response.status_code != 200:
                        return self._check_status(response.status_code, begun_s, await response.aread())
                    await response.aread()
        except TimeoutError:
            return "cancelled"
        return "finished"

    async def _overflow(self, http: httpx.AsyncClient, api: Api) -> str:
        """Send a prompt that no context holds; expect 400."""
        begun_s = asyncio.get_running_loop().time()
        response = await http.post(api.path, json=api.body(self._prompt(self._too_long), 4, False))  # noqa: FBT003
        if response.status_code == 400:
            return "refused"
        if response.status_code == 200:
            message = f"an overflow was answered: {response.content[:200]!r}"
            raise Violation(message)
        return self._check_status(response.status_code, begun_s, response.content)

    async def _malformed(self, http: httpx.AsyncClient, api: Api) -> str:
        """Send what is no request; expect 4xx, also while there is no engine."""
        begun_s = asyncio.get_running_loop().time()
        data = self._random.choice(BAD_BODIES)
        if self._random.random() < 0.3:
            text = json.dumps(api.body("x", 4, False)).encode()  # noqa: FBT003 - see Api
            data = text[: self._random.randrange(1, len(text) - 1)]
        response = await http.post(api.path, content=data, headers={"content-type": "application/json"})
        if 400 <= response.status_code < 500 and response.status_code != 429:
            return "refused"
        if response.status_code == 200:
            message = f"{data[:100]!r} to {api.path} was answered: {response.content[:200]!r}"
            raise Violation(message)
        return self._check_status(response.status_code, begun_s, response.content)
