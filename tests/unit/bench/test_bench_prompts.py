"""Prompts: exact lengths, no special ids, the same for a seed whoever makes them."""

import numpy as np
import pytest

from hundredfold.bench.prompts import RandomPrompts, TextPrompts
from hundredfold.v1.generation_pb2 import GenerateRequest

POOL = np.arange(100, 500, dtype=np.uint32)


def filled(source, index: int, *, warmup: bool = False) -> GenerateRequest:
    request = GenerateRequest()
    source.fill(request, index, warmup=warmup)
    return request


def test_random_prompts_have_the_exact_length_and_only_ids_of_the_pool():
    ids = filled(RandomPrompts.draw(POOL, 77, 0, seed=1), 5).token_ids.ids
    assert len(ids) == 77
    assert set(ids) <= set(POOL.tolist())


def test_prompts_depend_on_seed_and_number_alone():
    one, same, other = (RandomPrompts.draw(POOL, 32, 0, seed=seed) for seed in (1, 1, 2))
    assert filled(one, 3) == filled(same, 3)
    assert filled(one, 3) != filled(one, 4)
    assert filled(one, 3) != filled(other, 3)
    assert filled(one, 3) != filled(one, 3, warmup=True)


def test_shared_prefix_is_shared_with_the_warmup_too_and_the_rest_differs():
    source = RandomPrompts.draw(POOL, 32, 20, seed=1)
    a, b, w = (source.ids(0, warmup=False), source.ids(1, warmup=False), source.ids(0, warmup=True))
    assert a[:20] == b[:20] == w[:20]
    assert len({tuple(ids[20:]) for ids in (a, b, w)}) == 3
    whole = RandomPrompts.draw(POOL, 32, 32, seed=1)
    assert whole.ids(0, warmup=False) == whole.ids(1, warmup=False)
    assert whole.repeated_share(4) == 0.75


def test_text_prompts_go_round(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\n  \nzweiter – Ü\n", encoding="utf-8")
    source = TextPrompts.read(path)
    assert [filled(source, index).text for index in range(3)] == ["first", "zweiter – Ü", "first"]
    assert filled(source, 0, warmup=True).text == "zweiter – Ü"
    assert source.repeated_share(4) == 0.5


def test_empty_prompt_file_is_refused(tmp_path):
    (tmp_path / "none.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="no prompt"):
        TextPrompts.read(tmp_path / "none.txt")
