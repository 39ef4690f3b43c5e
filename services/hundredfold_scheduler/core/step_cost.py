"""What a step takes on one worker, learned from its own clock: a fixed part, parts for the rows that decode
and for what they read, and parts for prompts' tokens and for what these read.
"""

from __future__ import annotations

from dataclasses import dataclass

FORGETTING = 0.9
"""What is kept of what was known about a kind of step when one of that kind is measured. Nothing is
forgotten about other kinds: after hours of decodes a prompt costs what prompts did, and after a long prompt
decodes cost what decodes did.
"""
LIKENESS = 0.005
"""Weight of a guess, in units of what is known of its origin: that to read 512 tokens costs as much as the
rest of a prompt's token, and to read 256 as the rest of a row that decodes. Short prompts and even steps tell
the two apart by chance only.
"""
PULL, LEAST = 1e-4, 1e-9
"""Weight of 0, for what nothing measured says anything about, and its least part of what is known best: what
is below is rounding.
"""
FIRST_TOKENS = 64
"""Prompt tokens that are tried before anything is known; from there at most twice the most seen."""
FIRST_PAIRS = 64 * 512
"""The same of pairs."""
_UNITS = (1.0, 64.0, 64.0 * 256.0, 256.0, 256.0 * 512.0)
"""Of a step's work; they bring the parts to about the same size."""
_PARTS = range(len(_UNITS))
_FIXED, _ROW, _CONTEXT, _TOKEN, _PAIR = _PARTS
_GUESSES = ((_ROW, _CONTEXT), (_TOKEN, _PAIR))


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes."""

    rows: int = 0
    """That decode."""
    context: int = 0
    """Tokens that these read."""
    tokens: int = 0
    """Of prompts, and of drafts."""
    pairs: int = 0
    """Of such a token and one that it reads, see ``pairs_of``."""


def pairs_of(tokens: int, context: int) -> int:
    """What a chunk of so many tokens reads behind so many that are there, itself included."""
    return tokens * context + tokens * (tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class Prices:
    """What prompts cost in a step, in seconds."""

    per_token: float = 0.0
    per_pair: float = 0.0

    def seconds(self, tokens: int, pairs: float) -> float:
        """Of so many tokens that read so many."""
        return self.per_token * tokens + self.per_pair * pairs


class StepCost:
    """Least squares of relative errors, no part below 0, that forget only in the direction of what comes in
    (Cao and Schwartz 2000).
    """

    __slots__ = ("_belief", "_is_solved", "_known", "_most_pairs", "_most_tokens", "_sums")

    def __init__(self) -> None:
        self._belief = [0.0] * len(_UNITS)
        self._is_solved = True
        """Whether what is believed comes from all that was observed."""
        self._known = [[0.0] * len(_UNITS) for _ in _PARTS]
        self._sums = [0.0] * len(_UNITS)
        self._most_tokens = 0
        self._most_pairs = 0

    def observe(self, work: Work, seconds: float) -> None:
        """A step with such work took so long on the worker. One that took strangely long counts little, and
        one that was strangely short no more than others.
        """
        if seconds <= 0 or not (work.rows or work.tokens):
            return
        unit = max(seconds, self.seconds(work))
        self._most_tokens = max(self._most_tokens, work.tokens)
        self._most_pairs = max(self._most_pairs, work.pairs)
        self._is_solved = False
        known, sums = self._known, self._sums
        took, seen = seconds / unit, [amount / unit for amount in _amounts(work)]
        reach = [_dot(row, seen) for row in known]
        there = _dot(reach, seen)
        told = _dot(sums, seen)
        loss = (1 - FORGETTING) / there if there > 0 else 0.0
        for i in _PARTS:
            lost = loss * reach[i]
            sums[i] += seen[i] * took - lost * told
            row = known[i]
            for j in _PARTS:
                row[j] += seen[i] * seen[j] - lost * reach[j]

    def seconds(self, work: Work) -> float:
        """What a step with such work takes; 0 before any was measured."""
        return _dot(self._parts(), _amounts(work))

    def prices(self) -> Prices:
        """What prompts cost."""
        parts = self._parts()
        return Prices(parts[_TOKEN] / _UNITS[_TOKEN], parts[_PAIR] / _UNITS[_PAIR])

    @property
    def fixed_s(self) -> float:
        """What any step takes, in seconds; 0 before one was measured."""
        return self._parts()[_FIXED]

    @property
    def most_tokens(self) -> int:
        """That a step should have, going by what was tried."""
        return max(FIRST_TOKENS, 2 * self._most_tokens)

    @property
    def most_pairs(self) -> int:
        """The same of pairs."""
        return max(FIRST_PAIRS, 2 * self._most_pairs)

    def _parts(self) -> list[float]:
        """Those that fit best; while some are below 0, the lowest is left out."""
        if self._is_solved:
            return self._belief
        known, sums = [row.copy() for row in self._known], self._sums.copy()
        pull = PULL + LEAST * max(known[i][i] for i in _PARTS)
        for i in _PARTS:
            known[i][i] += pull
        for origin, guess in _GUESSES:
            weight = LIKENESS * self._known[origin][origin]
            known[guess][guess] += weight
            sums[guess] += weight * self._belief[origin]
        known[_FIXED][_FIXED] += LIKENESS * self._known[_TOKEN][_TOKEN]
        free = list(_PARTS)
        found = _solve(known, sums, free)
        while (lowest := min(found)) < 0:
            del free[found.index(lowest)]
            found = _solve(known, sums, free)
        self._belief = [0.0] * len(_UNITS)
        for part, value in zip(free, found, strict=True):
            self._belief[part] = value
        self._is_solved = True
        return self._belief


def _amounts(work: Work) -> list[float]:
    amounts = (1, work.rows, work.context, work.tokens, work.pairs)
    return [amount / unit for amount, unit in zip(amounts, _UNITS, strict=True)]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(map(float.__mul__, a, b))


def _solve(known: list[list[float]], sums: list[float], free: list[int]) -> list[float]:
    """Least squares over some of the parts; the others are 0."""
    rows = [[*(known[i][j] for j in free), sums[i]] for i in free]
    size = len(free)
    for i in range(size):  # symmetric and positive definite: no pivot is needed
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            for k in range(i, size + 1):
                rows[j][k] -= factor * rows[i][k]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][k] * found[k] for k in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
