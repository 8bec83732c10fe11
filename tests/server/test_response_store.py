from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caudal.server.responses.store import ResponseStore, StoredResponse

tenants = st.sampled_from(["", "a"])
ids = st.sampled_from(["r1", "r2", "r3", "r4"])
items = st.frozensets(st.sampled_from(["i1", "i2", "i3"]), max_size=2)
bodies = st.binary(max_size=20)
steps = st.lists(
    st.tuples(st.just("put"), tenants, ids, bodies, items)
    | st.tuples(st.sampled_from(["get", "delete"]), tenants, ids, bodies, items),
    max_size=30,
)


class Model:
    """The same, by a list from the least to the most recently used."""

    def __init__(self, max_count, max_bytes):
        self.max_count, self.max_bytes = max_count, max_bytes
        self.entries = []

    def find(self, key):
        return next((entry for entry in self.entries if entry[0] == key), None)

    def put(self, key, response):
        self.delete(key)
        if response.num_bytes > self.max_bytes:
            return
        self.entries.append((key, response))
        while len(self.entries) > self.max_count or sum(r.num_bytes for _, r in self.entries) > self.max_bytes:
            self.entries.pop(0)

    def get(self, key):
        entry = self.find(key)
        if entry is None:
            return None
        self.entries.remove(entry)
        self.entries.append(entry)
        return entry[1]

    def delete(self, key):
        entry = self.find(key)
        if entry is not None:
            self.entries.remove(entry)
        return entry is not None


@given(steps=steps, max_count=st.integers(1, 3), max_bytes=st.integers(0, 50))
def test_it_forgets_what_was_used_least_recently(steps, max_count, max_bytes):
    store, model = ResponseStore(max_count, max_bytes), Model(max_count, max_bytes)
    for what, tenant, response_id, body, item_ids in steps:
        key = (tenant, response_id)
        if what == "put":
            response = StoredResponse(body, b"", b"", item_ids)
            store.put(tenant, response_id, response)
            model.put(key, response)
        elif what == "get":
            assert store.get(tenant, response_id) == model.get(key)
        else:
            assert store.delete(tenant, response_id) == model.delete(key)
        assert len(store) == len(model.entries) <= max_count
        assert store.num_bytes == sum(response.num_bytes for _, response in model.entries) <= max_bytes


@given(steps=steps)
def test_items_lead_to_responses_of_their_tenant_that_are_kept(steps):
    store = ResponseStore(3, 1000)
    for what, tenant, response_id, body, item_ids in steps:
        if what == "put":
            store.put(tenant, response_id, StoredResponse(body, b"", b"", item_ids))
            assert all(store.holder(tenant, item_id) is store.get(tenant, response_id) for item_id in item_ids)
        elif what == "delete":
            store.delete(tenant, response_id)
        for (owner, item_id), holder in list(store._holders.items()):
            assert item_id in store._responses[(owner, holder)].item_ids
