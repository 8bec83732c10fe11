from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caudal.server.responses.store import ResponseStore, StoredResponse

tenants = st.sampled_from(["", "a", "b"])
ids = st.sampled_from(["r1", "r2", "r3", "r4"])
items = st.frozensets(st.sampled_from(["i1", "i2", "i3"]), max_size=2)
bodies = st.binary(max_size=20)
steps = st.lists(
    st.tuples(st.just("put"), tenants, ids, bodies, items)
    | st.tuples(st.sampled_from(["get", "delete"]), tenants, ids, bodies, items),
    max_size=30,
)


class Model:
    """The same, by a list of every tenant's responses from the least to the most recently used."""

    def __init__(self, max_count, max_bytes):
        self.max_count, self.max_bytes = max_count, max_bytes
        self.shelves = {}

    @property
    def responses(self):
        return [response for shelf in self.shelves.values() for _, response in shelf]

    def num_bytes(self, tenant):
        return sum(response.num_bytes for _, response in self.shelves[tenant])

    def put(self, tenant, response_id, response):
        self.delete(tenant, response_id)
        if response.num_bytes > self.max_bytes:
            return
        self.shelves.setdefault(tenant, []).append((response_id, response))
        while sum(response.num_bytes for response in self.responses) > self.max_bytes:
            self.forget(max(self.shelves, key=self.num_bytes))
        while len(self.responses) > self.max_count:
            self.forget(max(self.shelves, key=lambda name: len(self.shelves[name])))

    def forget(self, tenant):
        self.delete(tenant, self.shelves[tenant][0][0])

    def get(self, tenant, response_id):
        shelf = self.shelves.get(tenant, [])
        found = [entry for entry in shelf if entry[0] == response_id]
        for entry in found:
            shelf.remove(entry)
            shelf.append(entry)
        return found[0][1] if found else None

    def delete(self, tenant, response_id):
        before = self.shelves.get(tenant, [])
        after = [entry for entry in before if entry[0] != response_id]
        self.shelves[tenant] = after
        if not after:
            del self.shelves[tenant]
        return len(after) < len(before)


@given(steps=steps, max_count=st.integers(1, 5), max_bytes=st.integers(0, 90))
def test_it_forgets_of_who_has_most_what_was_used_least_recently(steps, max_count, max_bytes):
    store, model = ResponseStore(max_count, max_bytes), Model(max_count, max_bytes)
    for what, tenant, response_id, body, item_ids in steps:
        if what == "put":
            response = StoredResponse(body, b"", b"", item_ids)
            store.put(tenant, response_id, response)
            model.put(tenant, response_id, response)
        elif what == "get":
            assert store.get(tenant, response_id) == model.get(tenant, response_id)
        else:
            assert store.delete(tenant, response_id) == model.delete(tenant, response_id)
        assert len(store) == len(model.responses) <= max_count
        assert store.num_bytes == sum(response.num_bytes for response in model.responses) <= max_bytes


@given(
    few=st.lists(st.integers(1, 100), min_size=1, max_size=4),
    many=st.lists(st.integers(1, 100), max_size=60),
)
def test_who_keeps_many_pushes_out_nobody_who_keeps_less(few, many):
    """Of a store of 800 bytes and 8 responses, a tenant with at most half of both loses nothing to another one."""
    store = ResponseStore(8, 800)
    for i, size in enumerate(few):
        store.put("few", f"r{i}", StoredResponse(b"x" * size, b"", b""))
    for i, size in enumerate(many):
        store.put("many", f"r{i}", StoredResponse(b"x" * size, b"", b""))
    assert all(store.get("few", f"r{i}") is not None for i in range(len(few)))
    assert not many or store.get("many", f"r{len(many) - 1}") is not None


@given(steps=steps)
def test_items_lead_to_responses_of_their_tenant_that_are_kept(steps):
    store = ResponseStore(3, 1000)
    for what, tenant, response_id, body, item_ids in steps:
        if what == "put":
            store.put(tenant, response_id, StoredResponse(body, b"", b"", item_ids))
            for item_id in item_ids if store.get(tenant, response_id) is not None else ():
                assert store.holder(tenant, item_id) is store.get(tenant, response_id)
        elif what == "delete":
            store.delete(tenant, response_id)
        for shelf in store._shelves.values():
            assert shelf.responses
            for item_id, holder in shelf.holders.items():
                assert item_id in shelf.responses[holder].item_ids
