"""The draw on a CPU: one row at a time in numpy, whose vector loops over a row that lies in the L2 cache are
several times as fast as sorting in torch. Draws what ``TorchDrawer`` draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.sampling.draw import DrawRows
from hundredfold_worker.sampling.noise import bits, exponential, spread

F32 = NDArray[np.float32]
Ids = NDArray[np.intp]

_LEAST_NOISE = -np.log(2.0**-33)
"""Minus the logarithm of the least noise there is: a token further below the winner cannot win."""
_SLACK = 1e-3
"""Margin, relative or in units of log weight, by which float32 bounds are widened; float64 decides."""
_HEAD = 16.0
"""Log weights below the top that are tried first as home of the nucleus."""


class HostDrawer:
    """Keeps the first stage of the vocabulary's noise."""

    def __init__(self, vocab_size: int) -> None:
        self._spread = spread(np.arange(vocab_size))

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
        top_noise = exponential(bits(wanted.keys[:, 0], wanted.keys[:, 1], self._spread[wanted.top_ids]))
        drawn = np.empty(len(wanted.rows), dtype=np.int64)
        for i, row in enumerate(wanted.rows):
            limit = int(wanted.limits[i])
            drawn[i] = self._draw(array[row, :limit], wanted, i, float(top_noise[i]))
        return drawn

    def _draw(self, row: F32, wanted: DrawRows, i: int, top_noise: float) -> int:
        top, temperature = wanted.top_values[i], wanted.temperature[i]
        top_k, top_p, min_p = int(wanted.top_k[i]), float(wanted.top_p[i]), float(wanted.min_p[i])
        if top_k < len(row) or top_p < 1.0:
            ids = _nucleus(row, top, temperature, top_k, top_p)
        elif min_p > 0.0:
            ids = _above(row, top, temperature, -np.log(min_p))
        else:
            return self._race(row, top, temperature, wanted.keys[i], top_noise)
        weights = _weights(row[ids], top, temperature)
        if min_p > 0.0:
            ids, weights = ids[weights >= min_p], weights[weights >= min_p]
        noise = exponential(bits(wanted.keys[i, 0], wanted.keys[i, 1], self._spread[ids]))
        return int(ids[_first_least(noise, weights, ids, row)])

    def _race(self, row: F32, top: np.float32, temperature: np.float32, key: Any, top_noise: float) -> int:
        """The draw from every token: bounds in float32 leave a few candidates, float64 decides among them."""
        # The top token scores its own noise; who wins has to have less, and noise has a floor.
        near = _above(row, top, temperature, max(0.0, _LEAST_NOISE + np.log(top_noise)))
        ids: Ids | None = near
        if 2 * len(near) > len(row):
            ids, values, spread_ids = None, row, self._spread[: len(row)]
        else:
            values, spread_ids = row[near], self._spread[near]
        uniform = bits(key[0], key[1], spread_ids)
        bound_bits = uniform.astype(np.float32)
        bound_bits += np.float32(0.5)
        with np.errstate(divide="ignore", over="ignore"):
            scaled = values - top
            scaled /= temperature
            np.exp(scaled, out=scaled)
            bound_bits /= scaled
        # noise >= its bits: more bits per weight than the best has noise per weight cannot win.
        best = int(bound_bits.argmin())
        best_noise = exponential(uniform[best : best + 1])[0] * 2.0**32 / scaled[best]
        left = np.flatnonzero(bound_bits <= np.float32(best_noise * (1 + _SLACK)))
        noise = exponential(uniform[left])
        left_ids = left if ids is None else ids[left]
        return int(left_ids[_first_least(noise, _weights(row[left_ids], top, temperature), left_ids, row)])


def _nucleus(row: F32, top: np.float32, temperature: np.float32, top_k: int, top_p: float) -> Ids:
    """Ids that survive top_k and then top_p, likeliest first, the lower id first among equals."""
    if top_k < len(row):
        least = np.partition(row, len(row) - top_k)[len(row) - top_k]
        ids = _ordered(row, np.flatnonzero(row >= least))[:top_k]
        if top_p >= 1.0:
            return ids
        weights = _weights(row[ids], top, temperature)
        return ids[_within(weights, float(weights.cumsum()[-1]), top_p)]
    ids = _ordered(row, _above(row, top, temperature, _HEAD))
    weights = _weights(row[ids], top, temperature)
    with np.errstate(over="ignore"):
        rest = np.exp((row - top) / temperature)
    rest[ids] = 0.0
    total = float(weights.sum()) + float(rest.sum(dtype=np.float64))
    if weights.sum() < top_p * total:
        ids = _ordered(row, np.arange(len(row)))
        weights = _weights(row[ids], top, temperature)
        total = float(weights.sum())
    return ids[_within(weights, total, top_p)]


def _within(weights: NDArray[np.float64], total: float, top_p: float) -> NDArray[np.bool_]:
    """Tokens, likeliest first, before which less than ``top_p`` of the weight lies."""
    before = weights.cumsum() - weights
    kept: NDArray[np.bool_] = before < top_p * total
    kept[0] = True
    return kept


def _above(row: F32, top: np.float32, temperature: np.float32, depth: float) -> Ids:
    """Ids whose log weight is at most ``depth`` below the top's, and a few more."""
    cut = float(top) - float(temperature) * (depth + _SLACK) - abs(float(top)) * 1e-6
    return np.flatnonzero(row >= np.float32(max(cut, float(np.finfo(np.float32).min))))


def _ordered(row: F32, ids: Ids) -> Ids:
    return ids[np.argsort(-row[ids], kind="stable")]


def _weights(values: F32, top: np.float32, temperature: np.float32) -> NDArray[np.float64]:
    """Probabilities in units of the likeliest token's, float64; the difference is float32."""
    scaled: NDArray[np.float64] = (values - top).astype(np.float64) / float(temperature)
    return np.exp(scaled)


def _first_least(noise: NDArray[np.float64], weights: NDArray[np.float64], ids: Ids, row: F32) -> int:
    """Where noise per weight is least; among equals the likelier token, then the lower id."""
    with np.errstate(divide="ignore", over="ignore"):
        scores = noise / weights
    least = np.flatnonzero(scores == scores.min())
    if len(least) == 1:
        return int(least[0])
    return int(min(least, key=lambda i: (-float(row[ids[i]]), int(ids[i]))))
