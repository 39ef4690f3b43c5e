"""The draw on a CPU: one row at a time in numpy, whose vector loops over a row that lies in the L2 cache are
several times as fast as sorting in torch. Draws what ``TorchDrawer`` draws.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.sampling.draw import DrawRows
from hundredfold_worker.sampling.noise import bits, exponential, spread

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Ids = NDArray[np.intp]

_SLACK = 1e-3
"""Margin, in units of log weight, by which float32 bounds are widened; float64 decides."""
_HEADS = (8.0, 4.0, 2.0)
"""Depths below the top, in log weight, that are tried as the part of a row that is looked at closely."""
_LARGE_HEAD = 4096
_NUCLEUS_DEPTHS = (4.0, 8.0, 16.0)
"""Depths that are tried as home of the nucleus, before the whole row is sorted."""


class HostDrawer:
    """Keeps the first stage of the vocabulary's noise, and memory for one row."""

    def __init__(self, vocab_size: int) -> None:
        self._spread = spread(np.arange(vocab_size))
        self._scratch: F32 = np.empty(vocab_size, dtype=np.float32)
        self._bits = np.empty((2, vocab_size), dtype=np.uint32)

    def likeliest(
        self, logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See ``Drawer``."""
        array: F32 = logits.numpy()
        limit = int(limits[0]) if len(limits) else 0
        if len(rows) == len(array) and bool((limits == limit).all()):
            ids = array[:, :limit].argmax(axis=1).astype(np.int64)
        else:
            picked = zip(rows, limits, strict=True)
            ids = np.array([array[row, :end].argmax() for row, end in picked], dtype=np.int64)
        return ids, array[rows, ids]

    def draw(self, logits: Tensor, wanted: DrawRows) -> NDArray[np.int64]:
        """See ``Drawer``."""
        array: F32 = logits.numpy()
        drawn = np.empty(len(wanted.rows), dtype=np.int64)
        with np.errstate(divide="ignore", over="ignore"):
            for i, row in enumerate(wanted.rows):
                drawn[i] = self._draw(array[row, : int(wanted.limits[i])], wanted, i)
        return drawn

    def _draw(self, row: F32, wanted: DrawRows, i: int) -> int:
        top, temperature, key = wanted.top_values[i], wanted.temperature[i], wanted.keys[i]
        top_k, top_p, min_p = int(wanted.top_k[i]), float(wanted.top_p[i]), float(wanted.min_p[i])
        if top_k < len(row):
            ids = _top_k(row, top_k)
            if top_p < 1.0:
                weights = _weights(row[ids], top, temperature)
                ids = ids[_within(weights, float(weights.sum()), top_p)]
        elif top_p < 1.0:
            ids = self._nucleus(row, top, temperature, top_p)
        elif min_p > 0.0:
            ids = _above(row, top, temperature, -math.log(min_p))
        else:
            return self._race(row, top, temperature, key)
        if min_p > 0.0:
            ids = ids[_weights(row[ids], top, temperature) >= min_p]
        return _first(row, ids, self._scores(row, ids, top, temperature, key))[0]

    def _race(self, row: F32, top: np.float32, temperature: np.float32, key: Any) -> int:
        """The draw from every token. The head is scored closely; of the rest, with weights below a bound,
        only tokens with so little noise that they could win.
        """
        for depth in _HEADS:
            head = _above(row, top, temperature, depth)
            if len(head) <= _LARGE_HEAD:
                break
        least_depth = depth if len(head) <= _LARGE_HEAD else 0.0
        head = head[:_LARGE_HEAD]
        winner, score = _first(row, head, self._scores(row, head, top, temperature, key))
        # The noise is never less than its bits, so who wins from below has fewer bits than this.
        bound = score * math.exp(-least_depth) * (1 + _SLACK) * 2.0**32
        if bound < 0.5:
            return winner
        room = self._bits[:, : len(row)]
        uniform = bits(key[0], key[1], self._spread[: len(row)], room[0], room[1])
        rest = np.flatnonzero(uniform <= np.uint32(min(bound, 2.0**32 - 1)))
        if not len(rest):
            return winner
        both = np.union1d(rest, [winner])
        return _first(row, both, self._scores(row, both, top, temperature, key))[0]

    def _nucleus(self, row: F32, top: np.float32, temperature: np.float32, top_p: float) -> Ids:
        """Ids that survive top_p, likeliest first, the lower id first among equals."""
        scaled = np.subtract(row, top, out=self._scratch[: len(row)])
        scaled /= temperature
        total = float(np.exp(scaled, out=scaled).sum(dtype=np.float64))
        for depth in _NUCLEUS_DEPTHS:
            ids = _above(row, top, temperature, depth)
            weights = _weights(row[ids], top, temperature)
            if float(weights.sum()) >= top_p * total * (1 + _SLACK):
                break
        else:
            ids = np.arange(len(row))
        ids = _ordered(row, ids)
        return ids[_within(_weights(row[ids], top, temperature), total, top_p)]

    def _scores(self, row: F32, ids: Ids, top: np.float32, temperature: np.float32, key: Any) -> F64:
        """Noise per weight, float64; infinite where the weight is 0."""
        noise = exponential(bits(key[0], key[1], self._spread[ids]))
        return noise / _weights(row[ids], top, temperature)


def _top_k(row: F32, top_k: int) -> Ids:
    """Ids that survive top_k, likeliest first, the lower id first among equals."""
    least = np.partition(row, len(row) - top_k)[len(row) - top_k]
    return _ordered(row, np.flatnonzero(row >= least))[:top_k]


def _within(weights: F64, total: float, top_p: float) -> NDArray[np.bool_]:
    """Tokens, likeliest first, before which less than ``top_p`` of the weight lies."""
    before = weights.cumsum() - weights
    kept: NDArray[np.bool_] = before < top_p * total
    kept[0] = True
    return kept


def _above(row: F32, top: np.float32, temperature: np.float32, depth: float) -> Ids:
    """Ids whose log weight is at most ``depth`` below the top's, and perhaps a few more."""
    cut = float(top) - float(temperature) * (depth + _SLACK) - abs(float(top)) * 1e-6
    return np.flatnonzero(row >= np.float32(max(cut, float(np.finfo(np.float32).min))))


def _ordered(row: F32, ids: Ids) -> Ids:
    return ids[np.argsort(-row[ids], kind="stable")]


def _weights(values: F32, top: np.float32, temperature: np.float32) -> F64:
    """Probabilities in units of the likeliest token's, float64; the difference is float32."""
    scaled: F64 = (values - top).astype(np.float64) / float(temperature)
    return np.exp(scaled)


def _first(row: F32, ids: Ids, scores: F64) -> tuple[int, float]:
    """The id with the least score, and the score; among equals the likelier token, then the lower id."""
    best = int(scores.argmin())
    equals = np.flatnonzero(scores == scores[best])
    if len(equals) > 1:
        best = int(min(equals, key=lambda i: (-float(row[ids[i]]), int(ids[i]))))
    return int(ids[best]), float(scores[best])
