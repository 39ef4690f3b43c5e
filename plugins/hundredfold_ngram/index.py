"""Where the last few tokens of one sequence occurred before: the longest match, the latest among equals."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NOWHERE = -1
_MULTIPLIER, _WORD = 0x9E3779B97F4A7C15, 0xFFFFFFFFFFFFFFFF
_FIRST_ROOM = 256
_BULK = 48
"""New tokens from which numpy is faster than a loop."""


class SequenceIndex:
    """Chains of places with equal hashes of the ``shortest`` tokens before them, as in LZ77. A token costs
    the same wherever it comes; memory is 4 bytes per token and 4 per bucket.
    """

    def __init__(self, shortest: int, longest: int, num_buckets: int, most_tried: int) -> None:
        """``num_buckets`` is a power of two; ``most_tried`` bounds the places that one look compares."""
        self._shortest = shortest
        self._longest = longest
        self._shift = 64 - max(1, num_buckets.bit_length() - 1)
        self._most_tried = most_tried
        self._last = array("i", [_NOWHERE]) * (1 << (64 - self._shift))
        """By bucket: the last place, which is the number of tokens before it."""
        self._before = array("i", [_NOWHERE]) * _FIRST_ROOM
        """By place: the one before it in the same bucket."""
        self._size = 0
        """Places that are known: those after each of the first so many tokens."""

    def find(self, token_ids: NDArray[np.int32]) -> int | None:
        """Take in what ``token_ids`` int32[n] has beyond the last call, and return an earlier place before
        which stand the same tokens as at its end, at least ``shortest`` of them; ``None`` for none.
        """
        length = len(token_ids)
        if length <= self._shortest:
            return None
        # The place at the end is not taken in: nothing follows it yet.
        self._extend(token_ids, length - 1)
        tail: list[int] = token_ids[max(0, length - self._longest) :].tolist()
        place, best, best_length = self._last[self._bucket(tail)], None, self._shortest - 1
        for _ in range(self._most_tried):
            if place == _NOWHERE:
                break
            there: list[int] = token_ids[max(0, place - self._longest) : place].tolist()
            alike = _common_end(tail, there)
            if alike > best_length:
                best, best_length = place, alike
                if alike == len(tail):
                    break
            place = self._before[place]
        return best

    def _extend(self, token_ids: NDArray[np.int32], end: int) -> None:
        """Know all places up to ``end``."""
        begin, shortest = max(self._size + 1, self._shortest), self._shortest
        if end >= len(self._before):
            room = array("i", [_NOWHERE]) * (max(end + 1, 2 * len(self._before)) - len(self._before))
            self._before.extend(room)
        if end - begin < _BULK:
            ids: list[int] = token_ids[begin - shortest : end].tolist()
            for place in range(begin, end + 1):
                bucket = self._bucket(ids[place - begin : place - begin + shortest])
                self._before[place] = self._last[bucket]
                self._last[bucket] = place
        else:
            self._extend_at_once(token_ids, begin, end)
        self._size = max(self._size, end)

    def _extend_at_once(self, token_ids: NDArray[np.int32], begin: int, end: int) -> None:
        """The same for many places: sorted by bucket, each follows the one before it there."""
        shortest = self._shortest
        hashed = np.zeros(end - begin + 1, dtype=np.uint64)
        for back in range(shortest, 0, -1):
            hashed += token_ids[begin - back : end + 1 - back].astype(np.uint64)
            hashed *= np.uint64(_MULTIPLIER)
        buckets = (hashed >> np.uint64(self._shift)).astype(np.int64)
        last: NDArray[Any] = np.frombuffer(self._last, dtype=np.int32)
        before: NDArray[Any] = np.frombuffer(self._before, dtype=np.int32)
        order = np.argsort(buckets, kind="stable")
        ordered = buckets[order]
        follows = np.concatenate([[False], ordered[1:] == ordered[:-1]])
        places = (order + begin).astype(np.int32)
        before[places] = np.where(follows, np.roll(places, 1), last[ordered])
        ends = np.concatenate([ordered[1:] != ordered[:-1], [True]])
        last[ordered[ends]] = places[ends]

    def _bucket(self, token_ids: list[int]) -> int:
        """Of the place after these."""
        hashed = 0
        for token in token_ids[-self._shortest :]:
            hashed = (hashed + token) * _MULTIPLIER & _WORD
        return hashed >> self._shift


def _common_end(one: list[int], other: list[int]) -> int:
    """How many tokens at the end are the same."""
    count = 0
    for mine, theirs in zip(reversed(one), reversed(other), strict=False):
        if mine != theirs:
            break
        count += 1
    return count
