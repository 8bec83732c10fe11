"""What a key's scopes and models mean for models in memory: who is told of them, loads them, and sends them away."""

from __future__ import annotations

import pytest
from test_keys import ask, keyed

from caudal.server.model_directory import OneModel

READS, ASKS, WRITES = (
    {"scopes": ("models:read",)},
    {"scopes": ("inference",)},
    {"scopes": ("inference", "models:write")},
)


async def test_states_are_told_of_models_that_the_key_may_use(tmp_path):
    everywhere = {"scopes": ("models:read", "models:write")}
    async with keyed(tmp_path, everywhere, {**everywhere, "models": ("other*",)}) as (http, [all_, other]):
        (row,) = (await http.get("/admin/models", headers=all_)).json()["models"]
        assert (await http.get("/admin/models", headers=other)).json()["models"] == []
        for verb in ("load", "unload"):
            asked = {"json": {"model": row["model"]}}
            refused = await http.post(f"/admin/models/{verb}", headers=other, **asked)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
            assert (await http.post(f"/admin/models/{verb}", headers=all_, **asked)).status_code != 404


@pytest.mark.parametrize(("fields", "decides"), [(ASKS, False), (WRITES, True)])
async def test_who_says_how_long_a_model_stays(tmp_path, monkeypatch, fields, decides):
    kept, unloaded = [], []

    async def unload(_, name):
        unloaded.append(name)

    monkeypatch.setattr(OneModel, "keep", lambda _, name, stay_s: kept.append((name, stay_s)))
    monkeypatch.setattr(OneModel, "unload", unload)
    async with keyed(tmp_path, fields) as (http, [mine]):
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "say:hi"}], "stream": False}
        for path, body in (
            ("/api/chat", {**chat, "keep_alive": "5m"}),
            ("/api/generate", {"model": "scripted", "prompt": "say:hi", "stream": False, "keep_alive": -1}),
            ("/api/generate", {"model": "scripted", "keep_alive": 60}),
        ):
            assert (await http.post(path, json=body, headers=mine)).status_code == 200
        assert len(kept) == (3 if decides else 0)
        for path, body in (("/api/generate", {}), ("/api/chat", {"messages": []})):
            answer = await http.post(path, json={"model": "scripted", "keep_alive": 0, **body}, headers=mine)
            assert answer.status_code == (200 if decides else 403)
            assert decides or "models:write" in answer.json()["error"]
        assert len(unloaded) == (2 if decides else 0)


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenizer_info"])
async def test_who_only_looks_loads_nothing(tmp_path, monkeypatch, path):
    async with keyed(tmp_path, READS, ASKS) as (http, [reads, asks]):
        assert (await http.get(path, headers=reads)).status_code == 200
        leased = []
        lease = OneModel.lease
        monkeypatch.setattr(OneModel, "lease", lambda self, name: leased.append(name) or lease(self, name))
        assert (await http.get(path, headers=reads)).status_code == 200
        assert leased == []  # what is only looked at does not count as used
        monkeypatch.setattr(OneModel, "loaded", lambda _: ())
        refused = await http.get(path, headers=reads)
        assert refused.status_code == 400
        assert "is not loaded" in refused.json()["error"]["message"]
        assert (await http.get(path, headers=asks)).status_code == 200
        assert len(leased) == 1
        assert (await ask(http, asks)).status_code == 200
