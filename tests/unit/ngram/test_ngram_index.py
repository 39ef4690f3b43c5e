"""The n-gram index against a search that looks at everything."""

from __future__ import annotations

import numpy as np
import pytest

from hundredfold.plugin import DraftRequest, SpeculationSpec
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_speculative
from hundredfold_ngram.index import SequenceIndex
from hundredfold_ngram.strategy import Ngram, NgramDrafter, NgramOptions

SPEC = SpeculationSpec(vocab_size=1000, max_model_len=4096, max_num_seqs=4, num_speculative_tokens=5)


def array_of(ids: list[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def searched(ids: list[int], shortest: int, longest: int) -> int | None:
    """The longest match by looking everywhere, the latest first."""
    best, best_length = None, shortest - 1
    for place in range(len(ids) - 1, shortest - 1, -1):
        alike = 0
        while alike < min(longest, place) and ids[place - 1 - alike] == ids[-1 - alike]:
            alike += 1
        if alike > best_length:
            best, best_length = place, alike
    return best


@pytest.mark.parametrize("vocab_size", [2, 5, 40])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 3), (2, 4), (3, 8)])
def test_the_longest_match_and_of_those_the_latest(vocab_size: int, shortest: int, longest: int) -> None:
    """Texts that grow by one token or by many at once, in buckets so few that all of them are shared."""
    rng = np.random.default_rng(vocab_size)
    found = 0
    for num_buckets in (2, 1024):
        for _ in range(8):
            index = SequenceIndex(shortest, longest, num_buckets, most_tried=10_000)
            ids: list[int] = []
            while len(ids) < 400:
                if len(ids) > 20 and rng.random() < 0.5:
                    copied = int(rng.integers(len(ids) - 10))
                    ids += ids[copied : copied + 10]
                else:
                    ids += rng.integers(0, vocab_size, int(rng.choice([1, 1, 2, 6, 60, 130]))).tolist()
                want = searched(ids, shortest, longest)
                assert index.find(array_of(ids)) == want
                found += want is not None
    assert found > 30


def test_a_look_is_bounded() -> None:
    """Only the latest places are compared: a text of one word costs no more than any other."""
    ids = [7] * 3000
    assert SequenceIndex(2, 32, 4096, most_tried=4).find(array_of(ids)) == len(ids) - 1
    far = [1, 2, 3, *[9, 2, 3] * 50, 1, 2, 3]
    assert SequenceIndex(2, 3, 4096, most_tried=1000).find(array_of(far)) == 3
    assert SequenceIndex(2, 3, 4096, most_tried=10).find(array_of(far)) == 153


def test_memory_is_bounded_by_the_sequence() -> None:
    index = SequenceIndex(2, 4, 4096, most_tried=32)
    ids = np.random.default_rng(0).integers(0, 1000, 5000).astype(np.int32)
    for end in range(10, 5000, 7):
        index.find(ids[:end])
    assert len(index._before) <= 2 * 5000
    assert len(index._last) == 4096


def test_drafts_are_what_followed() -> None:
    drafter = NgramDrafter(SPEC, NgramOptions())
    text = [1, 2, 3, 4, 5, 6, 7, 8, 2, 3]
    requests = [DraftRequest(0, array_of(text), 4), DraftRequest(1, array_of([5, 6]), 4)]
    assert drafter.propose(requests) == [[4, 5, 6, 7], []]
    # a loop goes on with itself, and a draft is never longer than wanted
    assert drafter.propose([DraftRequest(2, array_of([9, 1, 2, 1, 2]), 5)]) == [[1, 2, 1, 2, 1]]
    assert drafter.propose([DraftRequest(2, array_of([9, 1, 2, 1, 2, 1]), 2)]) == [[2, 1]]
    assert drafter.propose([DraftRequest(2, array_of([9, 1, 2, 1, 2, 1]), 0)]) == [[]]


def test_a_slot_is_forgotten() -> None:
    drafter = NgramDrafter(SPEC, NgramOptions())
    drafter.propose([DraftRequest(0, array_of([1, 2, 3, 1, 2]), 4)])
    drafter.forget(0)
    drafter.forget(3)
    assert drafter.propose([DraftRequest(0, array_of([8, 9, 1, 2]), 4)]) == [[]]


def test_the_plugin_is_found_and_conforms() -> None:
    plugin = Registry("hundredfold.speculative").get("ngram")
    assert isinstance(plugin, Ngram)
    assert check_speculative(plugin).accepted


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shortest": "0"}, "shortest = '0' has to be a number from 1 to 32"),
        ({"longest": "33"}, "longest = '33' has to be a number from 1 to 32"),
        ({"tried": "x"}, "tried = 'x' has to be a number from 1 to 1024"),
        ({"shortest": "5"}, "longest = 4 is below shortest = 5"),
        ({"size": "5"}, "option 'size' is unknown; options are shortest, longest, tried"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], reason: str) -> None:
    spec = SpeculationSpec(100, 100, 1, 5, options)
    assert Ngram().refuses(spec) == [reason]
    assert Ngram().refuses(SpeculationSpec(100, 100, 1, 5, {"shortest": "3", "tried": "7"})) == []
