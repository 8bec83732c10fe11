import itertools

from caudal.core.kv_cache import KVCache
from caudal.core.prefix_cache import extend_digests, namespace_digest
from caudal.core.request import Request, Sequence
from caudal.core.step_plan import KVGroup


def sequence(token_ids, **more):
    request = Request(request_id="r", prompt_token_ids=tuple(token_ids), **more)
    return Sequence(
        seq_id=0,
        request=request,
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        max_num_tokens=len(token_ids) + 1,
    )


def digests(token_ids, **more):
    seq = sequence(token_ids, **more)
    extend_digests(seq, len(token_ids) // 2, 2)
    return seq.digests


def test_a_digest_names_everything_before_it():
    one, other = digests([1, 2, 3, 4]), digests([9, 2, 3, 4])
    assert one == digests([1, 2, 3, 4, 5])
    assert len({*one, *other}) == 4


def test_namespaces_never_meet():
    pairs = [("", ""), ("a", ""), ("", "a"), ("a", "bc"), ("ab", "c"), ("é", ""), ("a:1:", "b")]
    names = [namespace_digest(sequence([1], cache_salt=salt, adapter=adapter).request) for salt, adapter in pairs]
    assert len(set(names)) == len(pairs)
    assert all(set(digests([1, 2], cache_salt="a")).isdisjoint(digests([1, 2], adapter=name)) for name in ("", "a"))


def cached(kv, token_ids):
    """Compute and release a sequence, so that its full blocks are cached."""
    seq = sequence(token_ids)
    kv.start(seq, 0)
    for end in range(2, len(token_ids) + 1, 2):
        assert kv.grow(seq, end)
        seq.num_computed_tokens = end
        kv.advance(seq)
    kv.release(seq)


def test_a_hit_needs_every_group():
    for window, lost in itertools.product([1, 2, 3, 5], [None, 3, 4]):
        kv = KVCache((KVGroup(20), KVGroup(20, window)), 2, enable_prefix_caching=True)
        cached(kv, range(10))
        if lost is not None:
            digest = digests(list(range(10)))[lost]
            block_id = kv.pools[1]._block_ids.pop(digest)
            kv.pools[1]._digests[block_id] = None
        # The last window - 1 tokens before the hit must be there; a window of 1 needs nothing.
        num_back = -(-(window - 1) // 2)
        usable = [count for count in range(6) if lost is None or not count - num_back <= lost < count]
        assert kv.match(sequence(range(11)), 10) == max(usable)


def test_a_sliding_group_holds_its_window_and_no_more():
    kv = KVCache((KVGroup(4, 4),), 2, enable_prefix_caching=False)
    seq = sequence(range(40))
    kv.start(seq, 0)
    for end in range(1, 41):
        assert kv.grow(seq, end)
        seq.num_computed_tokens = end
        kv.advance(seq)
        held = [block for block, block_id in enumerate(seq.block_tables[0]) if block_id >= 0]
        assert held == list(range(max(0, end - 3) // 2, -(-end // 2)))
        kv.check_integrity([seq])
    assert kv.max_tokens_alone(1000) == 1000
    assert KVCache((KVGroup(2, 4), KVGroup(50)), 2, enable_prefix_caching=False).max_tokens_alone(1000) == 4
