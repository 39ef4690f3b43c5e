"""What one sequence's penalties and bad words have to remember: sparse, so that it costs no vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 64


class TokenCounts:
    """The distinct tokens of a sequence: how often the output holds each. Prompt tokens count 0 times."""

    def __init__(self, prompt: NDArray[np.integer], output: NDArray[np.integer]) -> None:
        seen, counts = np.unique(output, return_counts=True)
        fresh = np.setdiff1d(prompt, seen)
        self._size = len(seen) + len(fresh)
        room = max(_FIRST_ROOM, 2 * self._size)
        self._ids = np.zeros(room, dtype=np.int64)
        self._counts = np.zeros(room, dtype=np.float32)
        self._ids[: self._size] = np.concatenate([seen, fresh])
        self._counts[: len(seen)] = counts
        self._place = {int(token): i for i, token in enumerate(self._ids[: self._size])}

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """int64[n], each id once."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """float32[n], times that the output holds each."""
        return self._counts[: self._size]

    def copy(self) -> TokenCounts:
        """The same counts, to go on by themselves."""
        twin = TokenCounts.__new__(TokenCounts)
        twin._size, twin._place = self._size, dict(self._place)
        twin._ids, twin._counts = self._ids.copy(), self._counts.copy()
        return twin

    def add(self, token_id: int) -> None:
        """The output grew by a token."""
        place = self._place.get(token_id)
        if place is None:
            place = self._place[token_id] = self._size
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token_id
            self._size += 1
        self._counts[place] += 1


class BadWords:
    """Runs of ids that must not be completed, looked up by the id before the last."""

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self.single = np.array(sorted({word[0] for word in words if len(word) == 1}), dtype=np.int64)
        """int64[n]: words of one id, never allowed."""
        self._by_last: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for *prefix, last in (word for word in words if len(word) > 1):
            self._by_last.setdefault(prefix[-1], []).append((tuple(prefix), last))

    def completions(self, token_ids: NDArray[np.integer]) -> list[int]:
        """Ids that would complete a word of several ids after ``token_ids``, prompt included."""
        if not self._by_last or len(token_ids) == 0:
            return []
        return [
            last
            for prefix, last in self._by_last.get(int(token_ids[-1]), ())
            if len(prefix) <= len(token_ids) and tuple(token_ids[-len(prefix) :].tolist()) == prefix
        ]
