"""Blocks: the pool's three places, the chained hash, the index, and what a sequence's table may hold."""

from __future__ import annotations

import random
from array import array

import pytest

from hundredfold_scheduler.core.block_hash import BlockHasher, new_seed
from hundredfold_scheduler.core.block_pool import BlockPool
from hundredfold_scheduler.core.prefix_index import PrefixIndex

SEED = b"s" * 32


def names(pool: BlockPool, blocks: list[int]) -> None:
    for block in blocks:
        pool.name(block, b"content of %d" % block)


def take(pool: BlockPool, count: int) -> list[int]:
    return [pool.take()[0] for _ in range(count)]


def test_a_fresh_block_has_one_reference() -> None:
    """Item 26: reference counts start at 1 and never go below 0."""
    pool = BlockPool(4)
    block, lost = pool.take()
    assert (pool.references[block], lost) == (1, None)
    pool.release([block])
    with pytest.raises(ValueError, match="more often than it is held"):
        pool.release([block])


def test_every_block_is_in_one_place() -> None:
    pool = BlockPool(6)
    blocks = take(pool, 4)
    names(pool, blocks[:2])
    pool.release(blocks[:3])
    assert (pool.num_free, pool.num_cached, pool.num_used) == (3, 2, 1)
    assert pool.num_available == 5


def test_free_blocks_go_before_cached_ones_and_the_oldest_content_first() -> None:
    pool = BlockPool(4)
    blocks = take(pool, 4)
    names(pool, blocks[1:])
    pool.release([blocks[2], blocks[1], blocks[3], blocks[0]])
    order = take(pool, 4)
    assert order == [blocks[0], blocks[2], blocks[1], blocks[3]]


def test_taking_a_cached_block_tells_what_was_lost() -> None:
    pool = BlockPool(1)
    (block,) = take(pool, 1)
    pool.name(block, b"content")
    pool.release([block])
    assert pool.take() == (block, b"content")
    assert pool.digests[block] is None


def test_a_cached_block_is_revived_with_its_content() -> None:
    pool = BlockPool(3)
    blocks = take(pool, 3)
    names(pool, blocks)
    pool.release(blocks)
    pool.hold(blocks[1])
    pool.hold(blocks[1])
    assert pool.cached_blocks() == [blocks[0], blocks[2]]
    assert pool.digests[blocks[1]] is not None
    assert pool.references[blocks[1]] == 2


def test_an_empty_pool_gives_nothing() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(IndexError):
        pool.take()


def test_a_block_whose_content_is_distrusted_becomes_free() -> None:
    pool = BlockPool(2)
    blocks = take(pool, 2)
    names(pool, blocks)
    pool.release([blocks[0]])
    pool.unname(blocks[0])
    pool.unname(blocks[1])
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 0, 1)
    pool.release([blocks[1]])
    assert pool.num_free == 2


def test_the_pool_is_an_lru_list_under_any_use() -> None:
    """Against a model of plain lists, which is obviously right and slow."""
    rng = random.Random(1)
    pool = BlockPool(12)
    cached: list[int] = []
    used: list[int] = []
    for _ in range(3000):
        action = rng.random()
        if action < 0.4 and pool.num_available:
            block, lost = pool.take()
            if lost is not None:
                assert block == cached.pop(0)
            used.append(block)
            if rng.random() < 0.7:
                pool.name(block, b"%d" % block)
        elif action < 0.6 and cached:
            block = cached.pop(rng.randrange(len(cached)))
            pool.hold(block)
            used.append(block)
        elif used:
            block = used.pop(rng.randrange(len(used)))
            pool.release([block])
            if pool.digests[block] is not None:
                cached.append(block)
        assert pool.cached_blocks() == cached
        assert pool.num_used == len(used)
        assert pool.num_free + pool.num_cached + pool.num_used == 12


def hash_of(hasher: BlockHasher, tokens: list[int], adapter: str = "", salt: bytes = b"") -> bytes:
    return hasher.block(hasher.root(adapter, salt), array("I", tokens))


def test_the_hash_tells_apart_all_that_keys_and_values_depend_on() -> None:
    """Items 29, 30, 32 and 40: model, adapter, salt, tokens and their order, and what came before."""
    hasher = BlockHasher(SEED, "model", 4)
    plain = hash_of(hasher, [1, 2, 3, 4])
    others = [
        hash_of(BlockHasher(SEED, "model2", 4), [1, 2, 3, 4]),
        hash_of(BlockHasher(b"t" * 32, "model", 4), [1, 2, 3, 4]),
        hash_of(BlockHasher(SEED, "model", 8), [1, 2, 3, 4]),
        hash_of(hasher, [1, 2, 3, 4], adapter="adapter"),
        hash_of(hasher, [1, 2, 3, 4], salt=b"salt"),
        hash_of(hasher, [4, 3, 2, 1]),
        hash_of(hasher, [1, 2, 3, 5]),
        hasher.block(plain, array("I", [1, 2, 3, 4])),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert plain == hash_of(hasher, [1, 2, 3, 4])


def test_fields_of_the_root_cannot_run_into_each_other() -> None:
    """Lengths are part of what is hashed: moving a byte from one field to the next changes it."""
    assert BlockHasher(SEED, "ab", 4).root("c", b"") != BlockHasher(SEED, "a", 4).root("bc", b"")
    hasher = BlockHasher(SEED, "m", 4)
    assert hasher.root("a", b"b") != hasher.root("ab", b"")
    assert hasher.root("", b"salt") != hasher.root("salt", b"")


def test_known_polynomial_collisions_do_not_collide() -> None:
    """Item 30: P[3]+1, P[4]-31, and every permutation of a short block."""
    hasher = BlockHasher(SEED, "model", 8)
    prompt = [10, 20, 30, 40, 50, 60, 70, 80]
    moved = prompt.copy()
    moved[3] += 1
    moved[4] -= 31
    rng = random.Random(2)
    variants = [prompt, moved] + [rng.sample(prompt, 8) for _ in range(500)]
    distinct = {tuple(v) for v in variants}
    assert len({hash_of(hasher, list(v)) for v in distinct}) == len(distinct)


def test_the_root_differs_between_processes() -> None:
    """Item 29: nobody outside can compute a hash, since its key is drawn at start."""
    assert new_seed() != new_seed()
    assert len(new_seed()) == 32


def test_the_index_keeps_the_first_block_of_a_content() -> None:
    index = PrefixIndex()
    assert index.add(b"a", 1)
    assert not index.add(b"a", 2)
    assert index.find(b"a") == 1
    index.remove(b"a")
    assert index.find(b"a") is None
    assert len(index) == 0
