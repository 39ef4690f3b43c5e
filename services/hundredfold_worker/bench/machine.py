"""Measures what this machine could do at best: bytes read a second, and products a second by type.

``python -m hundredfold_worker.bench.machine`` prints one JSON object. The shares that a benchmark tells are
shares of these figures, so each is the best of several kernels, shapes and tries. A product of two matrices
that no kernel here computes fast (int8 without VNNI, bf16 without its instructions) is still a figure: what
the libraries reach on this processor.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

READ_BYTES = 512 * 2**20
"""Far more than any cache holds."""
SHAPES = ((512, 1024, 1024), (256, 1536, 2048), (256, 768, 768), (1024, 1024, 512))
"""Rows, columns and depth: a step of many tokens by a layer's matrix. Larger ones leave a core's own cache,
which matrix units (AMX) feel first.
"""
TRY_S = 0.25
"""How long one kernel with one shape is tried."""
FIRST_LIMIT_S = 2.0
"""A kernel whose first call takes longer is not tried again."""


def read_bandwidth(size: int = READ_BYTES) -> float:
    """Bytes per second that all threads together read from memory, best of several passes."""
    buffer = torch.ones(size // 4, dtype=torch.float32)
    passes: list[Callable[[], object]] = [buffer.sum, buffer.max]
    return max(size / _best_s(run) for run in passes)


def products(dtype: torch.dtype) -> float:
    """Multiplications with addition per second, two operations each, of the fastest product of a type.

    0.0 when no kernel takes it.
    """
    makers = _INT8 if dtype == torch.int8 else _FLOAT
    best = 0.0
    for rows, columns, depth in SHAPES:
        for maker in makers:
            try:
                run = maker(rows, columns, depth, dtype)
                best = max(best, 2.0 * rows * columns * depth / _best_s(run))
            except (RuntimeError, NotImplementedError, AttributeError):
                continue  # not on this processor, or not in this torch
    return best


def _best_s(run: Callable[[], object]) -> float:
    """Seconds of the fastest of the calls that fit into ``TRY_S``, at least one."""
    times = list(_timed(run))
    return min(times)


def _timed(run: Callable[[], object]) -> Iterator[float]:
    end = time.perf_counter() + TRY_S
    while True:
        begun = time.perf_counter()
        run()
        now = time.perf_counter()
        yield now - begun
        if now >= end or now - begun > FIRST_LIMIT_S:
            return


def _dense(rows: int, columns: int, depth: int, dtype: torch.dtype) -> Callable[[], Tensor]:
    left, right = torch.randn(rows, depth).to(dtype), torch.randn(columns, depth).to(dtype)
    return lambda: torch.nn.functional.linear(left, right)


def _onednn_dense(rows: int, columns: int, depth: int, dtype: torch.dtype) -> Callable[[], Tensor]:
    left, right = torch.randn(rows, depth).to(dtype), torch.randn(columns, depth).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(right, rows)
    product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
    return lambda: product(left, packed, None, "none", [], "")


_FLOAT = (_dense, _onednn_dense)


def _int_mm(rows: int, columns: int, depth: int, _: torch.dtype) -> Callable[[], Tensor]:
    left = torch.randint(-127, 128, (rows, depth), dtype=torch.int8)
    right = torch.randint(-127, 128, (columns, depth), dtype=torch.int8).t()
    return lambda: torch._int_mm(left, right)


def _onednn_int8(rows: int, columns: int, depth: int, _: torch.dtype) -> Callable[[], Tensor]:
    left = torch.randint(0, 255, (rows, depth), dtype=torch.uint8)
    right = torch.randint(-127, 128, (columns, depth), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(right, None)
    scales, zeros = torch.full((columns,), 0.01), torch.zeros(columns, dtype=torch.int64)
    product: Callable[..., Tensor] = torch.ops.onednn.qlinear_pointwise
    # Of the outputs that it offers bytes cost least, and the product is what counts here.
    tail: tuple[object, ...] = (packed, scales, zeros, None, 1.0, 0, torch.uint8, "none", [], "")
    return lambda: product(left, 0.02, 0, *tail)


def _fbgemm_int8(rows: int, columns: int, depth: int, _: torch.dtype) -> Callable[[], Tensor]:
    left = torch.randn(rows, depth)
    right = torch.quantize_per_tensor(torch.randn(columns, depth), 0.02, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(right, None)
    product: Callable[..., Tensor] = torch.ops.quantized.linear_dynamic
    return lambda: product(left, packed)


_INT8 = (_int_mm, _onednn_int8, _fbgemm_int8)


def measure() -> dict[str, object]:
    """All figures, by the names of ``hundredfold.bench.ceilings.Ceilings``."""
    warnings.filterwarnings("ignore", category=UserWarning)  # torch's own word on its quantized tensors
    with torch.inference_mode():
        return {
            "read_bytes_per_s": read_bandwidth(),
            "operations_per_s": {
                "fp32": products(torch.float32),
                "bf16": products(torch.bfloat16),
                "int8": products(torch.int8),
            },
            "threads": torch.get_num_threads(),
            "instructions": str(torch.backends.cpu.get_cpu_capability()),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")
