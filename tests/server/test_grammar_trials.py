"""No key keeps others from having their grammars tried, and nobody's is tried who has left."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from conftest import in_process
from test_keys import keyed
from test_openai_routes import until

from caudal.constrain import checker as checking
from caudal.constrain.checker import MAX_TRIALS_OF_TENANT, GrammarChecker

MESSAGES = [{"role": "user", "content": "say:hi"}]


def schema(name):
    return {"type": "object", "properties": {name: {}}}


def named(name):
    return {"type": "json_schema", "name": "n", "schema": schema(name)}


ASKS = {
    "/v1/chat/completions": lambda name: {"messages": MESSAGES, "guided_json": schema(name)},
    "/v1/completions": lambda name: {"prompt": "say:hi", "guided_json": schema(name)},
    "/v1/messages": lambda name: {"messages": MESSAGES, "max_tokens": 9, "output_config": {"format": named(name)}},
    "/v1/responses": lambda name: {"input": "say:hi", "text": {"format": named(name)}},
    "/api/chat": lambda name: {"messages": MESSAGES, "format": schema(name)},
    "/api/generate": lambda name: {"prompt": "say:hi", "format": schema(name)},
    "/completion": lambda name: {"prompt": "say:hi", "json_schema": schema(name)},
}


def body_of(path, name):
    return {"model": "scripted", "stream": False, **ASKS[path](name)}


@pytest.fixture
def trials(monkeypatch):
    """The grammars that threads try; they go on when `may_end` is set."""

    class Trials(list):
        may_end = threading.Event()

    begun = Trials()

    def wait(self, grammar):
        begun.append(grammar)
        begun.may_end.wait(30)
        return checking._Known(checking.CheckResult(grammar=grammar))

    monkeypatch.setattr(GrammarChecker, "_try", wait)
    begun.may_end.clear()
    yield begun
    begun.may_end.set()


@pytest.mark.parametrize("path", ASKS)
async def test_one_key_does_not_hold_up_the_others(tmp_path, trials, path):
    async with keyed(tmp_path, {}, {}) as (http, [greedy, modest]):

        async def ask(name, headers):
            return await http.post(path, json=body_of(path, name), headers=headers)

        held = [asyncio.create_task(ask(f"own {n}", greedy)) for n in range(MAX_TRIALS_OF_TENANT)]
        await until(lambda: len(trials) == 2)
        await asyncio.sleep(0.05)
        refused = await ask("one more", greedy)
        assert refused.status_code == 429, refused.text
        assert "of this key" in refused.text
        assert int(refused.headers["retry-after"]) >= 1
        other = asyncio.create_task(ask("other", modest))
        await asyncio.sleep(0.05)
        assert not other.done()
        trials.may_end.set()
        answers = await asyncio.gather(other, *held)
        assert [answer.status_code for answer in answers] == [200] * len(answers)
        assert (await ask("one more", greedy)).status_code == 200


@pytest.mark.parametrize("path", ASKS)
async def test_the_grammar_of_a_client_that_has_left_is_not_tried(trials, path):
    async with in_process() as http:
        busy = [asyncio.create_task(http.post(path, json=body_of(path, f"busy {n}"))) for n in range(2)]
        await until(lambda: len(trials) == 2)
        leaves = asyncio.Event()
        asking = asyncio.create_task(ask_and_leave(http._transport.app, path, body_of(path, "left"), leaves))
        await asyncio.sleep(0.1)
        assert not asking.done()
        leaves.set()
        await asyncio.wait_for(asking, 5)
        trials.may_end.set()
        assert [answer.status_code for answer in await asyncio.gather(*busy)] == [200, 200]
        assert (await http.post(path, json=body_of(path, "later"))).status_code == 200
    assert ["left" in grammar for grammar in trials] == [False] * 3


async def ask_and_leave(app, path, body, leaves):
    """Send a request as a server hands it on whose client closes the connection."""
    data = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
