"""Whoever has nothing running is next in line, however much others have queued. Any sizes, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fairness import Scene
from scheduler_traces import CORE


@settings(deadline=None, max_examples=200)
@given(
    num_places=st.integers(1, 6),
    lengths=st.lists(st.integers(1, 9), min_size=20, max_size=60),
    num_steps_before=st.integers(0, 15),
    lone_prompt=st.integers(1, 30),
)
def test_a_lone_request_gets_the_next_free_place(num_places, lengths, num_steps_before, lone_prompt):
    scene = Scene(CORE, max_num_seqs=num_places, max_num_batched_tokens=64)
    for index, max_tokens in enumerate(lengths):
        scene.add(f"busy {index}", 8, tenant="busy", max_tokens=max_tokens)
    for _ in range(num_steps_before):
        if scene.scheduler.has_work:
            scene.step()
    started_before = {name for name in scene.first_token if name not in scene.finished}
    finished_before = set(scene.finished)
    scene.add("lone", lone_prompt, tenant="lone", max_tokens=1)
    while "lone" not in scene.first_token:
        freed = set(scene.finished) - finished_before
        scene.step()
        if "lone" not in scene.first_token:
            assert not freed or len(started_before) < num_places, (
                "a place became free and the lone request did not start"
            )
    # All places that become free in one step are filled in the next: the lone one is among the first to fill them.
    assert scene.first_token["lone"] <= num_steps_before + max(lengths) + 1


@settings(deadline=None, max_examples=100)
@given(
    num_tenants=st.integers(2, 5), per_tenant=st.lists(st.integers(1, 30), min_size=5, max_size=5), seed=st.randoms()
)
def test_starts_are_divided_evenly_while_all_wait(num_tenants, per_tenant, seed):
    scene = Scene(CORE, max_num_seqs=1, max_num_batched_tokens=64)
    names = [(f"{tenant}/{i}", str(tenant)) for tenant in range(num_tenants) for i in range(per_tenant[tenant])]
    seed.shuffle(names)
    for name, tenant in names:
        scene.add(name, 4, tenant=tenant, max_tokens=1)
    order = []
    while scene.scheduler.has_work:
        scene.step()
        order = sorted(scene.first_token, key=scene.first_token.__getitem__)
    num_rounds = min(per_tenant[:num_tenants])
    counts = [sum(name.startswith(f"{t}/") for name in order[: num_rounds * num_tenants]) for t in range(num_tenants)]
    assert counts == [num_rounds] * num_tenants
