"""Drafters of tests: one that knows the answers, and errs as often as it is told to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hundredfold.plugin import DraftRequest


class Knowing:
    """Drafts from answers known before. Each draft token is wrong by chance; and all of an unknown answer."""

    def __init__(self, error_rate: float = 0.0, vocab_size: int = 64, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._error_rate = error_rate
        self._vocab_size = vocab_size
        self.answers: dict[int, list[int]] = {}
        """Prompt and output by slot."""
        self.told: list[tuple[int, int, int]] = []
        """What was observed."""
        self.forgotten: list[int] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        drafts = []
        for request in requests:
            have, answer = request.token_ids.tolist(), self.answers.get(request.slot, [])
            right = answer[len(have) : len(have) + request.max_draft_tokens]
            if have != answer[: len(have)]:
                right = []
            padded = right + [1] * (request.max_draft_tokens - len(right))
            wrong = self._rng.random(len(padded)) < self._error_rate
            drafts.append(
                [(t + int(w)) % self._vocab_size for t, w in zip(padded, wrong.tolist(), strict=True)]
            )
        return drafts

    def observe(self, slot: int, proposed: int, accepted: int) -> None:
        self.told.append((slot, proposed, accepted))

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)


class Silent:
    """Has nothing to offer, and counts how often it was asked, by slot."""

    def __init__(self) -> None:
        self.asked: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        for request in requests:
            self.asked[request.slot] = self.asked.get(request.slot, 0) + 1
        return [[] for _ in requests]

    def observe(self, slot: int, proposed: int, accepted: int) -> None:
        raise AssertionError("nothing was proposed")

    def forget(self, slot: int) -> None:
        pass
