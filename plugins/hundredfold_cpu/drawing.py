"""Draws by native kernels: rows of logits in, token ids out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import DrawRows
from hundredfold_cpu.library import INT, POINTER, Kernel, Variant
from hundredfold_cpu.lookup import SUFFIXES

SHORT = 1 << 18
"""Logits that take well under a millisecond: for no more, the interpreter is not lent to others."""


class CpuDrawer:
    """See ``hundredfold.plugin.Drawer``."""

    def __init__(self, variant: Variant, spread_ids: NDArray[np.uint32]) -> None:
        p, i = POINTER, INT
        likeliest, draw = (p, i, p, p, i, p, p), (p, i, p, p, i, p, p, p, p, p, p, p, p, i, p)

        def function(name: str, *arguments: Any) -> dict[bool, Kernel]:
            return {lent: variant.function(name, *arguments, release=lent) for lent in (False, True)}

        self._likeliest = {
            dtype: function(f"likeliest_{suffix}", *likeliest) for dtype, suffix in SUFFIXES.items()
        }
        self._draw = function("draw", *draw)
        self._spread = np.ascontiguousarray(spread_ids)
        self._room: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def likeliest(
        self, logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """In one pass over each row."""
        ids, values = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.float32)
        rows, limits = np.ascontiguousarray(rows, dtype=np.int64), np.ascontiguousarray(limits)
        self._likeliest[logits.dtype][_long(logits, rows)](
            logits.data_ptr(),
            logits.stride(0),
            rows.ctypes.data,
            limits.ctypes.data,
            len(rows),
            ids.ctypes.data,
            values.ctypes.data,
        )
        return ids, values

    def draw(self, logits: Tensor, wanted: DrawRows) -> NDArray[np.int64]:
        """Row by row, on all threads."""
        size, threads = len(self._spread), torch.get_num_threads()
        if len(self._room) < size * threads:
            self._room = np.empty(size * threads, dtype=np.uint64)
        drawn = np.empty(len(wanted.rows), dtype=np.int64)
        rows = np.ascontiguousarray(wanted.rows, dtype=np.int64)
        limits, *parameters = (
            np.ascontiguousarray(column)
            for column in (
                wanted.limits,
                wanted.top_values,
                wanted.temperature,
                wanted.top_k,
                wanted.top_p,
                wanted.min_p,
                wanted.keys,
            )
        )
        self._draw[_long(logits, rows)](
            logits.data_ptr(),
            logits.stride(0),
            rows.ctypes.data,
            limits.ctypes.data,
            len(rows),
            *(column.ctypes.data for column in parameters),
            self._spread.ctypes.data,
            self._room.ctypes.data,
            size,
            drawn.ctypes.data,
        )
        return drawn


def _long(logits: Tensor, rows: NDArray[np.int64]) -> bool:
    return len(rows) * logits.shape[1] > SHORT
