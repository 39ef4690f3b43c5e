"""What prompts may still take of a step: tokens, and the time that these are thought to take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hundredfold_scheduler.core.step_cost import Prices, pairs_of

PLENTY = 1 << 60
"""More than any step has."""
FREE = Prices()


@dataclass(slots=True)
class Budget:
    """A token is the dearer the more is there before it: how many there may be depends on whose they are."""

    tokens: int
    seconds: float = PLENTY
    pairs: float = PLENTY
    """Of a token and one that it reads."""
    prices: Prices = FREE
    window: int | None = None
    """Tokens that a token reads at most."""
    slack: float = 0.0
    """Seconds that may be taken beside where a prompt comes to its end by it."""
    fresh: bool = True
    """Nothing was taken yet. A token is always there then, so that every prompt comes to its end."""

    def most(self, context: int) -> int:
        """Tokens of a chunk that begins behind so many, at most; 0 or less when nothing is left."""
        if self.tokens <= 0:
            return self.tokens
        read = self._read(context) + 0.5
        price, step = self.prices.per_token + self.prices.per_pair * read, self.prices.per_pair
        fitting = min(self.tokens, _longest(price, step, self.seconds), _longest(read, 1.0, self.pairs))
        return max(int(fitting), int(self.fresh))

    def chunk(self, context: int, left: int) -> int:
        """Tokens that a prompt of which so many are left gets at most behind so many: all of them if they
        nearly fit, since the few that remained would cost it another step.
        """
        most = self.most(context)
        if not 0 < most < left <= self.tokens:
            return min(most, left)
        pairs = pairs_of(left, self._read(context))
        fits = pairs <= self.pairs and self.prices.seconds(left, pairs) <= self.seconds + self.slack
        return left if fits else most

    def covers(self, chunks: Iterable[tuple[int, int]]) -> bool:
        """Whether all of these fit together, each with the tokens before it and its own."""
        tokens = pairs = 0
        for context, count in chunks:
            tokens += count
            pairs += pairs_of(count, self._read(context))
        return (
            tokens <= self.tokens
            and pairs <= self.pairs
            and self.prices.seconds(tokens, pairs) <= self.seconds
        )

    def spend(self, context: int, tokens: int) -> None:
        """A chunk takes its part."""
        pairs = pairs_of(tokens, self._read(context))
        self.fresh = False
        self.tokens -= tokens
        self.pairs -= pairs
        self.seconds -= self.prices.seconds(tokens, pairs)

    def set_apart(self, parts: int) -> Budget:
        """Keep one part of so many for others, at least a token; what is not taken of it comes back by
        ``add``.
        """
        tokens = max(1, self.tokens // parts)
        seconds, pairs = max(0.0, self.seconds) / parts, max(0.0, self.pairs) / parts
        apart = Budget(tokens, seconds, pairs, self.prices, self.window, fresh=self.fresh)
        self.tokens -= tokens
        self.seconds -= seconds
        self.pairs -= pairs
        self.fresh = False
        return apart

    def add(self, rest: Budget) -> None:
        """What was set apart and not taken."""
        self.tokens += rest.tokens
        self.seconds += rest.seconds
        self.pairs += rest.pairs
        self.fresh |= rest.fresh

    def _read(self, context: int) -> int:
        return context if self.window is None else min(context, self.window)


def _longest(price: float, step: float, most: float) -> float:
    """The largest n of which ``price * n + step * n * n / 2`` is within ``most``."""
    if most <= 0:
        return 0.0
    if step <= 0:
        return most / price if price > 0 else PLENTY
    # What is subtracted from a root of nearly its size leaves nothing but rounding.
    return 2 * most / (price + math.sqrt(price * price + 2 * step * most))
