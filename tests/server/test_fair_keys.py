"""Keys on the real engine, with a tiny model: fair places in the batch, and prefix caches of their own."""

from __future__ import annotations

import asyncio

import pytest
from conftest import make_config
from factory import tiny_checkpoint
from test_keys import keyed
from test_openai_routes import until

from caudal.checkpoint import open_checkpoint
from caudal.engine.load import load_engine
from caudal.tokenizer.from_gguf import load_gguf_tokenizer


class WatchedEngine:
    """An engine that notes when requests come, start and end, by steps."""

    def __init__(self, engine):
        self.engine = engine
        self.num_steps = 0
        self.tenants, self.added, self.started, self.ended = {}, {}, {}, {}

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def add_request(self, request):
        self.tenants[request.request_id] = request.tenant
        self.added[request.request_id] = self.num_steps
        self.engine.add_request(request)

    def step(self):
        self.num_steps += 1
        updates = self.engine.step()
        for seq in self.engine._scheduler._running:
            self.started.setdefault(seq.request_id, self.num_steps)
        for update in updates:
            self.started.setdefault(update.request_id, self.num_steps)
            if update.finish_reason:
                self.ended[update.request_id] = self.num_steps
        return updates


@pytest.fixture
def real_engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_checkpoint(path)
    with open_checkpoint(path) as checkpoint:
        tokenizer = load_gguf_tokenizer(checkpoint.metadata, path=path)

    def make(**changes):
        fields = {"model_path": str(path), "backend": "reference", "max_model_len": 256, **changes}
        return {"engine": WatchedEngine(load_engine(make_config(**fields))), "tokenizer": tokenizer}

    return make


async def complete(http, headers, prompt, **fields):
    body = {"model": "scripted", "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
    return await http.post("/v1/completions", json=body, headers=headers)


@pytest.mark.parametrize("num_places", [1, 2, 4])
async def test_one_request_does_not_wait_behind_anothers_fifty(tmp_path, real_engine, num_places):
    real = real_engine(max_num_seqs=num_places)
    engine = real["engine"]
    settings = {"max_open_requests": 200}
    async with keyed(tmp_path, {}, {}, settings=settings, **real) as (http, [busy, quiet]):
        tasks = [asyncio.create_task(complete(http, busy, [7 + i], max_tokens=3 + i % 5)) for i in range(50)]
        await until(lambda: len(engine.added) == 50 and engine.started)
        lone = await complete(http, quiet, [5, 6], max_tokens=2)
        assert lone.status_code == 200
        assert sum(not task.done() for task in tasks) > 25
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}
        quiet_id = http.store.find("key 1").id
    (lone_id,) = (name for name, tenant in engine.tenants.items() if tenant == quiet_id)
    came, began = engine.added[lone_id], engine.started[lone_id]
    free_since = [
        step
        for step in range(came, began)
        if sum(engine.started[name] <= step < engine.ended.get(name, 10**9) for name in engine.started) < num_places
    ]
    assert len(free_since) <= 2, "a place was free for more than two steps"
    overtook = [name for name in engine.started if came + 1 < engine.started[name] < began]
    assert not overtook, "others began in between"


async def test_an_urgent_key_goes_first_and_the_others_still_get_on(tmp_path, real_engine):
    real = real_engine(max_num_seqs=1)
    engine = real["engine"]
    settings = {"max_open_requests": 400}
    async with keyed(tmp_path, {}, {"priority": -1}, settings=settings, **real) as (http, [patient, urgent]):
        tasks = [asyncio.create_task(complete(http, patient, [9], max_tokens=2)) for _ in range(3)]
        tasks += [asyncio.create_task(complete(http, urgent, [7 + i], max_tokens=2)) for i in range(60)]
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}
        urgent_id = http.store.find("key 1").id
    order = [engine.tenants[name] == urgent_id for name in sorted(engine.ended, key=engine.ended.__getitem__)]
    firsts = [place for place, is_urgent in enumerate(order) if not is_urgent]
    assert firsts[-1] < 60, "the patient ones waited for all the urgent ones"
    assert sum(order[:12]) >= 10, "urgency was worth nothing"


async def test_prefix_caches_of_keys_are_apart(tmp_path, real_engine):
    prompt = [3 + i % 60 for i in range(100)]

    async def cached(http, headers, **fields):
        usage = (await complete(http, headers, prompt, max_tokens=1, **fields)).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    async with keyed(tmp_path, {}, {}, settings={"api_keys": ("a",)}, **real_engine()) as (http, [one, two]):
        static = {"x-api-key": "a"}
        assert await cached(http, one) == 0
        assert await cached(http, two) == 0
        assert await cached(http, static) == 0
        for headers in (one, two, static):
            assert await cached(http, headers) >= 64
        assert await cached(http, one, cache_salt="other") == 0
        for salt in (http.store.find("key 0").id, http.store.find("key 0").id + "\0", "static-1"):
            assert await cached(http, two, cache_salt=salt) == 0  # no salt leads into another's cache
