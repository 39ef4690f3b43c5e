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
"""How fast the correction that steps say nothing about follows the other one."""
_ODD = (0.25, 4.0)
"""Bounds of a measured step against the table: a step that was held up says nothing."""


class DraftCost:
    """A table of step times measured once, straight lines between its points, and two factors that follow the
    machine: one for steps without drafts, one for steps with them.
    """

    def __init__(self, positions: Sequence[int], seconds: Sequence[float]) -> None:
        """``positions`` ascend from 1. A step that took longer than one of more positions was held up."""
        self._positions = np.array(positions, dtype=np.float64)
        self._seconds = np.minimum.accumulate(np.array(seconds, dtype=np.float64)[::-1])[::-1]
        self._plain = self._drafted = 1.0

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
        factor = min(max(factor, _ODD[0]), _ODD[1])
        if num_drafts:
            self._drafted += _WEIGHT * (factor - self._drafted)
            self._plain += _RETURN * (self._drafted - self._plain)
        else:
            self._plain += _WEIGHT * (factor - self._plain)
            self._drafted += _RETURN * (self._plain - self._drafted)

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
        rates = (rows + np.cumsum(worths[order])) / (self._drafted * self.seconds(positions + taken))
        best = int(rates.argmax())
        plain = rows / (self._plain * float(self.seconds(np.array([positions]))[0]))
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
