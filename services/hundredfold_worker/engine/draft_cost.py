"""What drafts cost and how many are worth it: seconds of a step by its positions, against expected tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hundredfold_worker.engine.plan import Ints

F64 = NDArray[np.float64]

MARGIN = 0.03
"""Tokens per second that drafts have to promise on top of what the step gives without."""
_SURE = 0.98
"""No draft is surer than this, so that a longer one is never free."""
_WEIGHT = 0.05
"""Of a measured step in the corrections of the table."""
_RETURN = 0.005
"""How fast, by steps without drafts, what was held against drafts is forgotten."""
_FRESH = 4
"""Steps with drafts after one without that are compared with it: the machine is the same still."""
_ODD = 4.0
"""A step that took so many times what was expected was held up, and counts as if it had taken that."""


class DraftCost:
    """A table of step times measured once, straight lines between its points, and what later steps say of it:
    how fast the machine is now, and how much longer steps with drafts take than the table lets expect.
    """

    def __init__(self, positions: Sequence[int], seconds: Sequence[float]) -> None:
        """``positions`` ascend from 1. A step that took longer than one of more positions was held up."""
        self._positions = np.array(positions, dtype=np.float64)
        self._seconds = np.minimum.accumulate(np.array(seconds, dtype=np.float64)[::-1])[::-1]
        self._speed = 1.0
        """Seconds per second of the table, by steps without drafts."""
        self._extra = 1.0
        """The same of steps with drafts, against that."""
        self._num_plain = 0
        self._since_plain = 0

    def seconds(self, positions: Ints) -> F64:
        """Seconds of steps of ``positions`` int64[n]; beyond the table as its last line goes on."""
        found: F64 = np.interp(positions, self._positions, self._seconds)
        if len(self._positions) > 1:
            rise = self._seconds[-1] - self._seconds[-2]
            slope = rise / (self._positions[-1] - self._positions[-2])
            found += slope * np.maximum(positions - self._positions[-1], 0)
        return found

    def observe(self, positions: int, num_drafts: int, seconds: float) -> None:
        """A step of decoding rows, ``num_drafts`` of its ``positions`` drafts, took so long."""
        factor = seconds / float(self.seconds(np.array([positions]))[0])
        if num_drafts:
            self._since_plain += 1
            if self._num_plain and self._since_plain <= _FRESH:
                self._extra += _WEIGHT * (min(factor / self._speed, _ODD) - self._extra)
            return
        self._num_plain += 1
        self._since_plain = 0
        if self._num_plain > 1:
            factor = min(factor, _ODD * self._speed)
        self._speed += max(_WEIGHT, 1 / self._num_plain) * (factor - self._speed)
        self._extra += _RETURN * (1.0 - self._extra)

    def allot(self, chances: F64, offered: Ints, rows: int, positions: int, most: int) -> Ints:
        """How many of the ``offered`` int64[n] drafts of each sequence to try, int64[n].

        Each draft is right with the sequence's chance, float64[n], if those before it are. Of all drafts the
        likeliest are taken, as many as give most tokens per second; none if that is not clearly more than the
        step gives without, in which ``rows`` draw a token each and ``positions`` are computed. Never more
        than ``most`` in all.
        """
        counts: Ints = np.zeros_like(offered)
        deepest = int(offered.max()) if len(offered) else 0
        if not deepest or most < 1:
            return counts
        depth = np.arange(1, deepest + 1)
        worth = np.minimum(chances, _SURE)[:, None] ** depth
        owners, depths = np.nonzero(depth <= offered[:, None])
        worths = worth[owners, depths]
        order = np.argsort(-worths, kind="stable")[:most]
        taken = np.arange(1, len(order) + 1)
        rates = (rows + np.cumsum(worths[order])) / (self._extra * self.seconds(positions + taken))
        best = int(rates.argmax())
        plain = rows / float(self.seconds(np.array([positions]))[0])
        if rates[best] > (1 + MARGIN) * plain:
            np.add.at(counts, owners[order[: best + 1]], 1)
        return counts

    def most_rows(self, num_drafts: int, limit: int) -> int:
        """Decoding rows up to which drafts that are nearly always right pay, at most ``limit``."""
        low, high = 0, limit
        while low < high:
            rows = (low + high + 1) // 2
            offered: Ints = np.full(rows, num_drafts, dtype=np.int64)
            if self.allot(np.ones(rows), offered, rows, rows, rows * num_drafts).any():
                low = rows
            else:
                high = rows - 1
        return low
