import pytest

from caudal.core.block_pool import BlockPool


def test_blocks_are_handed_out_in_order_and_blank_ones_before_fresh_ones():
    pool = BlockPool(4, 2)
    assert [pool.allocate(), pool.allocate()] == [0, 1]
    pool.release(0)
    assert [pool.allocate(), pool.allocate()] == [0, 2]


def test_a_cached_block_is_found_until_its_memory_is_needed():
    pool = BlockPool(2, 2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"first")
    pool.publish(second, b"second")
    pool.release(first)
    pool.release(second)
    assert (pool.num_free, pool.find(b"first"), pool.find(b"second")) == (2, first, second)
    assert pool.allocate() == first
    assert (pool.find(b"first"), pool.find(b"second")) == (None, second)
    pool.acquire(second)
    assert (pool.ref_count(second), pool.num_free, pool.num_used) == (1, 0, 2)
    pool.check_integrity([first, second])


def test_using_a_cached_block_makes_it_the_last_to_be_lost():
    pool = BlockPool(2, 2)
    for digest in (b"a", b"b"):
        pool.publish(pool.allocate(), digest)
    pool.release(0)
    pool.release(1)
    pool.acquire(0)
    pool.release(0)
    assert pool.allocate() == 1
    assert pool.find(b"a") == 0


def test_the_first_block_with_a_digest_stays_the_one_found():
    pool = BlockPool(2, 2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"same")
    pool.publish(second, b"same")
    assert pool.find(b"same") == first
    pool.release(second)
    pool.check_integrity([first])


def test_releasing_too_often_is_our_bug():
    pool = BlockPool(1, 2)
    pool.release(pool.allocate())
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(0)


def test_check_integrity_sees_a_wrong_reference():
    pool = BlockPool(2, 2)
    pool.allocate()
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])
