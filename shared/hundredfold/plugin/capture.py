"""Captured operations: native calls over buffers that stay, so that a step is one list of calls.

Optional for every plugin. Where all plugins of a model can, the worker makes the list once and a step of any
number of rows runs it natively; elsewhere it calls the operations one by one. Both compute the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hundredfold.plugin.attention import AttentionBatch, AttentionSpec, LayerCache
from hundredfold.plugin.elementwise import Activation, Rotation
from hundredfold.plugin.kv_cache import Encoding, KVCacheSpec
from hundredfold.plugin.weights import CanonicalWeight

if TYPE_CHECKING:
    from torch import Tensor

NO_ROWS = -1
"""``rows_at`` of a call that learns the number of rows in another way."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A native function and its arguments. Nothing in it may raise or need the interpreter."""

    function: int
    """Address of ``void function(const int64_t* words)``."""
    words: ctypes.Array[ctypes.c_int64]
    """Its arguments, eight bytes each."""
    rows_at: int
    """Which word the runner sets to the number of rows before the call."""
    held: tuple[object, ...]
    """What the arguments point into."""
    per_row: ctypes.Array[ctypes.c_int64] | None = None
    """What is to be added to each argument for every row that is left out in front; ``None`` where the rows
    cannot be computed apart."""


class Program(Protocol):
    """Calls that run one after the other."""

    def __call__(self, rows: int) -> None:
        """Run all over the first ``rows`` rows of their buffers. The interpreter is lent meanwhile."""


@runtime_checkable
class CapturingLinear(Protocol):
    """A ``Linear`` that can be captured."""

    def capture(self, x: Tensor, out: Tensor) -> NativeCall | None:
        """Multiply the first rows of ``x`` [most rows, K] into those of ``out`` [most rows, N].

        Rows are contiguous and may lie apart. ``None`` when this layer cannot.
        """


@runtime_checkable
class CapturingElementwise(Protocol):
    """An ``Elementwise`` that can be captured. Of [most rows, ...] the last dimension is contiguous."""

    def capture_rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> NativeCall:
        """``rms_norm`` of ``x`` [rows, n] or [rows, heads, n] into ``out``, which may be ``x``."""

    def capture_add(self, residual: Tensor, x: Tensor) -> NativeCall:
        """Add ``x`` [rows, n] to ``residual`` in place."""

    def capture_add_rms_norm(
        self, residual: Tensor, x: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> NativeCall:
        """``add_rms_norm`` into ``out`` [rows, n]."""

    def capture_rotate(self, x: Tensor, rotation: Rotation) -> NativeCall:
        """``rotate``; the angles of ``rotation`` are a buffer too."""

    def capture_gated(self, gate_up: Tensor, activation: Activation, out: Tensor) -> NativeCall:
        """``gated`` into ``out`` [rows, n]."""

    def program(self, calls: Sequence[NativeCall]) -> Program:
        """Calls of any plugin, ready to run."""


@runtime_checkable
class LookingUpElementwise(Protocol):
    """A ``CapturingElementwise`` that can also look rows up."""

    def capture_lookup(
        self, weight: CanonicalWeight, factor: float, rows: Tensor, out: Tensor
    ) -> NativeCall | None:
        """Row ``rows[i]`` of a matrix, dequantized and then times ``factor``, into row ``i`` of ``out``.

        ``rows`` is a buffer int64[most rows]. A number that the matrix has no row for gives NaN, the
        last line of defence: ids are checked before. ``None`` when matrices of this form cannot be looked up.
        """


class CapturedAttention(Protocol):
    """Attention of one program: its calls read what the step's ``prepare`` left for them."""

    def capture(
        self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> NativeCall:
        """``PlannedAttention`` into ``out`` [most rows, num_heads * head_dim], contiguous."""

    def prepare(self, batch: AttentionBatch) -> None:
        """The step that the calls compute next."""


@runtime_checkable
class CapturingAttention(Protocol):
    """An ``AttentionPlugin`` that can be captured."""

    def capturing(self, cache: KVCacheSpec, encoding: Encoding) -> CapturedAttention | None:
        """A new program's attention; ``None`` when it cannot over such a cache."""
